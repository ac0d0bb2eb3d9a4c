"""Corruption of text: tokens of a prompt are replaced, and the answer's log-odds change.

    log-odds = log p / (1 − p),  p the probability of the answer's first token behind the prompt

The answer is that of the task; a prompt without one (text, random) ends before its last token, which is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from repflow.capture.answers import first_answer_token
from repflow.core.errors import InputError, teach
from repflow.core.intervals import student_interval
from repflow.core.results import Result
from repflow.interventions.corruption import fill_ids
from repflow.metrics.meter import on_device
from repflow.spec.corruption import Region
from repflow.studies.corrupt.config import CorruptConfig, regions_of
from repflow.studies.corrupt.piece import Piece
from repflow.studies.corrupt.summary import region_facts
from repflow.studies.engine.prompts import make_prompts, padding_ids, prompt_facts
from repflow.tasks import Encoder, Prompts
from repflow.tasks.prompt import Prompt

if TYPE_CHECKING:
    from repflow.capture.run import Sink
    from repflow.models import Model

CLEAN = "clean"
TOKENS = 1 << 14
AXES = ("replacement", "region", "sample")


def equal_prompts(config: CorruptConfig, model: Model) -> tuple[Prompts, tuple[int, ...]]:
    """Prompts cut to the length of the shortest, so that a region means the same in all, and answers.

    They are cut on the left, behind the token that a sequence begins with.
    """
    prompts = make_prompts(config, model)
    answered = all(prompt.answers for prompt in prompts)
    if answered:
        encoder = Encoder(model.tokenizer, config.bos, model.bos_token_id)
        answers = tuple(first_answer_token(encoder, prompt) for prompt in prompts)
    else:
        answers = tuple(prompt.ids[-1] for prompt in prompts)
    whole = [prompt if answered else replace(prompt, ids=prompt.ids[:-1], answers=()) for prompt in prompts]
    length = min(len(prompt.ids) for prompt in whole)
    if length < 2:
        raise InputError(teach("prompts of at least 3 tokens", f"{length}", "pass a greater --length"))
    cut = [
        replace(prompt, ids=_cut(prompt, prompt.ids, length), tokens=_cut(prompt, prompt.tokens, length))
        for prompt in whole
    ]
    return replace(prompts, samples=tuple(cut)), answers


def _cut(prompt: Prompt, row: tuple[Any, ...], length: int) -> tuple[Any, ...]:
    """The first token where it begins the sequence, and the last ones."""
    first = int(prompt.begins)
    return (*row[:first], *row[len(row) - length + first :])


@torch.no_grad()
def log_odds(model: Model, ids: np.ndarray, answers: Sequence[int]) -> np.ndarray:
    """Log-odds of each prompt's answer (prompt,)."""
    size = max(1, TOKENS // ids.shape[1])
    odds: list[np.ndarray] = []
    for start in range(0, len(ids), size):
        last: list[Tensor] = []
        rows = torch.from_numpy(np.ascontiguousarray(ids[start : start + size]))
        model.stream(rows, on_state=_nothing, on_final_norm=last.append)
        logits = model.logits(last[0][:, -1]).double()
        target = on_device(torch.tensor(answers[start : start + size]), logits.device)[:, None]
        own = logits.gather(1, target)
        others = logits.scatter(1, target, -torch.inf).logsumexp(-1, keepdim=True)
        odds.append((own - others)[:, 0].cpu().numpy())
    return np.concatenate(odds)


def _nothing(*_: Any) -> None:
    """States on the way are not needed."""


def text_pieces(config: CorruptConfig, model: Model, prompts: Prompts, answers: Sequence[int]) -> list[Piece]:
    """Log-odds of prompts as they are, and with each region replaced."""
    ids = np.array([prompt.ids for prompt in prompts])
    vocabulary = np.setdiff1d(np.arange(model.vocab_size), padding_ids(model))

    def replaced(region: Region, kind: str) -> dict[str, np.ndarray]:
        draws = range(config.draws)
        odds = [_replaced(model, ids, answers, region, kind, vocabulary, config.seed, draw) for draw in draws]
        return {"log_odds": np.mean(odds, 0)}

    places = tuple(range(len(ids)))
    pieces = [Piece(CLEAN, lambda: {"log_odds": log_odds(model, ids, answers)}, ids.size, places)]
    pieces += [
        Piece(_shard(kind, region), partial(replaced, region, kind), config.draws * ids.size)
        for kind in config.replace
        for region in regions_of(config, ids.shape[1])
    ]
    return pieces


def _shard(kind: str, region: Region) -> str:
    return f"{kind}-{region.start}-{region.end}"


def text_result(config: CorruptConfig, prompts: Prompts, sink: Sink) -> Result:
    """Log-odds before, and their change by replacement, region and prompt."""
    ids = np.array([prompt.ids for prompt in prompts])
    regions = regions_of(config, ids.shape[1])
    clean = sink.load(CLEAN)["log_odds"]
    odds = [[sink.load(_shard(kind, region))["log_odds"] for region in regions] for kind in config.replace]
    arrays = {"log_odds_change": np.array(odds) - clean, "clean_log_odds": clean}
    axes: dict[str, Any] = {"log_odds_change": AXES, "clean_log_odds": ("sample",)}
    band = student_interval(clean)
    about = {"tokens": ids.shape[1], "prompts": len(ids), "answer": _answer_words(prompts)}
    about["clean"] = [float(part) for part in band]
    facts = {**region_facts(regions, config.replace, ()), "corrupt": about, "task": prompt_facts(prompts)}
    result = Result(arrays, axes, {}, facts)
    for name in arrays:
        result.band(name)
    return result


def _answer_words(prompts: Prompts) -> str:
    return "the answer's first token" if prompts[0].answers else "the prompt's own next token"


def _replaced(
    model: Model, ids: np.ndarray, answers: Sequence[int], region: Region, kind: str, vocabulary: np.ndarray,
    seed: int, draw: int,
) -> np.ndarray:  # fmt: skip
    changed = ids.copy()
    changed[:, region.start : region.end] = fill_ids(ids, region, kind, vocabulary, seed=seed, draw=draw)
    return log_odds(model, changed, answers)
