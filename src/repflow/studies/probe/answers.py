"""What the model itself answers, and where along depth its own head finds the answer; kept like everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.results import Finding
from repflow.studies.engine.phase import tell
from repflow.studies.probe.config import ProbeConfig

if TYPE_CHECKING:
    from repflow.capture.features import StoredFeatures
    from repflow.models import Model
    from repflow.studies.engine.feature_sink import Keeper
    from repflow.tasks import Prompts

EXTRA_TOKENS = 16
KEPT_ANSWERS = 8
CHECKED = 4
STATE = "answers-cache"

Table = dict[str, tuple[tuple[str, ...], np.ndarray]]


def answer_table(
    model: Model, prompts: Prompts, config: ProbeConfig, keeper: Keeper, progress: Any = None
) -> tuple[Table, list[dict[str, Any]], list[Finding]]:
    """Whether the greedy answer of each prompt asked holds a right one; the first answers; what prevented them.

    `answer_correct` (sample,) has NaN for prompts without a right answer and for those that leave no room for it.
    """
    wanted = [sample for sample in range(min(config.answers, len(prompts))) if prompts[sample].answers]
    if reason := _no_answers(model, config, wanted):
        return {}, [], [] if reason == "not asked" else [Finding("no_answers", None, reason)]
    correct, texts = _answers(model, prompts, wanted, config, keeper, progress)
    examples = [
        {"sample": sample, "answer": texts[sample], "right": list(prompts[sample].answers)}
        for sample in wanted[:KEPT_ANSWERS]
        if sample in texts
    ]
    findings = _short(model, prompts, wanted, config, correct)
    if keeper.has(STATE) and not bool(keeper.load(STATE)["agrees"]):
        text = "the model keeps no state that agrees with its forward pass: every token of an answer took a whole pass"
        findings.append(Finding("no_cache", None, text))
    if not correct:
        return {}, [], findings
    values = np.full(min(config.answers, len(prompts)), np.nan)
    values[list(correct)] = list(correct.values())
    return {"answer_correct": (("sample",), values)}, examples, findings


def _short(
    model: Model, prompts: Prompts, wanted: list[int], config: ProbeConfig, correct: dict[int, bool]
) -> list[Finding]:
    """Answers that could not be complete: for lack of room, or because too few tokens were requested."""
    findings = []
    if missing := len(wanted) - len(correct):
        text = (
            f"{missing} of {len(wanted)} prompts leave no room for a right answer within {model.max_length} tokens, so"
            " their answers were not judged"
        )
        findings.append(Finding("no_room", None, text))
    limit = config.answer_tokens
    if limit and (cut := sum(_answer_size(model, prompts, sample) > limit for sample in correct)):
        text = f"{cut} of {len(correct)} right answers are longer than the {limit} tokens of --answer-tokens"
        findings.append(Finding("answers_cut", None, text))
    return findings


def _answer_size(model: Model, prompts: Prompts, sample: int) -> int:
    """Tokens of the longest right answer with the blank before it."""
    answers = prompts[sample].answers
    from repflow.tasks.prompt import encode

    return max(len(encode(model.tokenizer, f" {answer}")) for answer in answers)


def _no_answers(model: Model, config: ProbeConfig, wanted: list[int]) -> str:
    if not config.answers:
        return "not asked"
    if not wanted:
        return "the prompts have no right answers, so the model's own answers were not judged"
    if any(finding.code == "nonfinite_weight" for finding in model.findings):
        return "the model has weights that are not finite, so its answers were not judged"
    if model.head is None or model.tokenizer is None:
        return f"the model has no {'head' if model.head is None else 'tokenizer'}, so it was not asked for answers"
    return ""


def _answers(
    model: Model, prompts: Prompts, wanted: list[int], config: ProbeConfig, keeper: Keeper, progress: Any
) -> tuple[dict[int, bool], dict[int, str]]:
    from repflow.capture.answers import answer_batches, answer_room, contains_answer, greedy_answers

    sizes = {sample: _answer_size(model, prompts, sample) for sample in wanted}
    tokens = config.answer_tokens or EXTRA_TOKENS + max(sizes.values())
    fitting = [sample for sample in wanted if answer_room(model, prompts, sample, sizes[sample]) == sizes[sample]]
    correct: dict[int, bool] = {}
    texts: dict[int, str] = {}
    cached: bool | None = None
    for batch in answer_batches(model, prompts, fitting):
        name = f"answers-{batch[0]:06d}-{len(batch)}"
        tell(progress, "greedy answers", len(correct), len(fitting))
        if not keeper.has(name):
            if cached is None:
                cached = _keeps_state(model, prompts, fitting, keeper)
            room = answer_room(model, prompts, batch[0], tokens)
            answers = greedy_answers(model, prompts, batch, tokens=room, cached=cached)
            right = [
                contains_answer(text, prompts[sample].answers) for sample, text in zip(batch, answers, strict=True)
            ]
            keeper.keep(name, {"correct": np.array(right), **_packed(answers)})
        stored = keeper.load(name)
        correct |= dict(zip(batch, map(bool, stored["correct"]), strict=True))
        texts |= dict(zip(batch, _unpacked(stored), strict=True))
    return correct, texts


def _keeps_state(model: Model, prompts: Prompts, fitting: list[int], keeper: Keeper) -> bool:
    """Checked once per run: a resumed one must answer as the first start did."""
    import torch

    from repflow.capture.answers import equal_length_batches
    from repflow.capture.continuation import keeps_state

    if not keeper.has(STATE):
        batch = max(equal_length_batches(prompts, fitting), key=len)[:CHECKED]
        agrees = keeps_state(model, torch.tensor([list(prompts[sample].ids) for sample in batch]))
        keeper.keep(STATE, {"agrees": np.array(agrees)})
    return bool(keeper.load(STATE)["agrees"])


def _packed(texts: list[str]) -> dict[str, np.ndarray]:
    """Texts as bytes and their lengths; shards hold numbers."""
    encoded = [text.encode() for text in texts]
    return {
        "text": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        "sizes": np.array([len(text) for text in encoded], dtype=np.int64),
    }


def _unpacked(stored: dict[str, np.ndarray]) -> list[str]:
    ends = np.cumsum(stored["sizes"])
    whole = stored["text"].tobytes()
    return [whole[end - size : end].decode() for end, size in zip(ends, stored["sizes"], strict=True)]


def lens_table(
    model: Model, prompts: Prompts, features: StoredFeatures, config: ProbeConfig, keeper: Keeper
) -> tuple[Table, list[Finding]]:
    """Rank and log-probability of the answer's first token at every state (state, sample), NaN without an answer.

    Args:
        model: the model.
        prompts: the first seed's.
        features: their features at the last token; state S is the final norm's output.
        config: how many prompts.
        keeper: keeps the table.
    """
    from repflow.capture.answers import first_answer_token, logit_lens
    from repflow.tasks import Encoder

    wanted = [sample for sample in range(min(config.lens, len(prompts))) if prompts[sample].answers]
    if not config.lens or config.states != "residual" or config.position != "last":
        return {}, []
    if not wanted or model.head is None or model.tokenizer is None:
        lacks = "the prompts have no answers" if not wanted else "the model has no head or no tokenizer"
        return {}, [Finding("no_lens", None, f"no logit lens: {lacks}")]
    if not keeper.has("lens"):
        encoder = Encoder(model.tokenizer, config.bos, model.bos_token_id)
        targets = [first_answer_token(encoder, prompts[sample]) for sample in wanted]
        ranks, logprobs = [], []
        for state in range(model.n_states):
            rank, logprob = logit_lens(model, features.state(state)[wanted].to(features.dtype), targets)
            ranks.append(rank)
            logprobs.append(logprob)
        keeper.keep("lens", {"rank": np.stack(ranks), "logprob": np.stack(logprobs)})
    stored = keeper.load("lens")
    table: Table = {}
    for name in ("rank", "logprob"):
        values = np.full((len(stored[name]), min(config.lens, len(prompts))), np.nan, dtype=stored[name].dtype)
        values[:, wanted] = stored[name]
        table[f"lens_{name}"] = (("state", "sample"), values)
    return table, []
