"""Reading the needle test's prompts: batch after batch, each kept as soon as it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from repflow.core.errors import InputError, out_of_memory, teach
from repflow.studies.needle.config import NeedleConfig
from repflow.tasks.needle.prompts import NeedlePrompts

if TYPE_CHECKING:
    from repflow.capture import Plan
    from repflow.capture.run import Progress, Records, Sink
    from repflow.models import Model

EXTRA_TOKENS = 8
CHECKED = 2
STATE = "keeps-state"


def answer_tokens(config: NeedleConfig, model: Model, documents: NeedlePrompts) -> int:
    """Tokens of a greedy answer: as asked, else enough for the longest candidate and some more where they fit."""
    if config.answer_tokens is not None:
        return config.answer_tokens
    least = max(len(ids) for words in documents.candidates for ids in words)
    left = EXTRA_TOKENS + least if model.max_length is None else model.max_length - max(documents.prompts.lengths)
    return max(least, min(EXTRA_TOKENS + least, left))


def check_model(config: NeedleConfig, model: Model, documents: NeedlePrompts) -> None:
    """Refuse what the model cannot read, before anything is written."""
    highest = max(
        max(max(prompt.ids) for prompt in documents.prompts), max(max(i) for w in documents.candidates for i in w)
    )
    if highest >= model.vocab_size:
        got = f"{highest} from its tokenizer"
        raise InputError(teach(f"token ids below {model.vocab_size}", got, "pass the model's own tokenizer"))
    if model.max_length is None:
        return
    longest = max(documents.prompts.lengths)
    room = max(answer_tokens(config, model, documents), *(len(ids) for words in documents.candidates for ids in words))
    if longest + room > model.max_length:
        expected = f"prompts with room for {room} tokens of answer within the {model.max_length} of {model.name}"
        shorter = [f"--lengths up to {model.max_length - room}"] if room < model.max_length else []
        fewer = [] if config.answer_tokens == 0 else ["fewer --answer-tokens"]
        raise InputError(teach(expected, f"{longest} tokens", f"pass {' or '.join(shorter + fewer)}"))


def read_batches(
    config: NeedleConfig, model: Model, documents: NeedlePrompts, sink: Sink, progress: Progress | None = None
) -> tuple[dict[int, np.ndarray], dict[int, str], bool]:
    """Read what is not kept yet.

    Returns:
        Per prompt the log-probability of each candidate, and the greedy answer; whether the model's own state was used.
    """
    from repflow.capture.run import _halve, batch_name

    plan = sink.plan(lambda: make_batches(documents.prompts.lengths, config.batch_size))
    cached = _keeps_state(model, documents, plan, sink)
    at = done = tokens = 0
    while at < len(plan.batches):
        batch = plan.batches[at]
        if not sink.has(batch_name(batch)):
            try:
                records = read_batch(
                    model, documents, batch, cached=cached, tokens=answer_tokens(config, model, documents)
                )
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                plan = _halve(plan, at, sink, error)
                continue
            sink.write(batch_name(batch), records)
        at += 1
        done += len(batch)
        tokens += sum(documents.prompts.lengths[prompt] for prompt in batch)
        if progress is not None:
            progress(done, len(documents.prompts), tokens)
    logprobs: dict[int, np.ndarray] = {}
    answers: dict[int, str] = {}
    for batch in plan.batches:
        for prompt, (record,) in sink.read(batch_name(batch)).items():
            logprobs[prompt] = record["logprob"]
            answers[prompt] = bytes(record["answer"][1:]).decode()
    return logprobs, answers, cached


def make_batches(lengths: Sequence[int], batch_size: int | None) -> Plan:
    """Prompts of equal length together, so that nothing is padded and all continue at the same token; longest first."""
    from repflow.capture import Plan
    from repflow.capture.plan import BATCH_TOKENS

    by_length: dict[int, list[int]] = {}
    for prompt, length in enumerate(lengths):
        by_length.setdefault(length, []).append(prompt)
    batches = []
    for length in sorted(by_length, reverse=True):
        same, size = by_length[length], batch_size or max(1, BATCH_TOKENS // length)
        batches += [tuple(same[start : start + size]) for start in range(0, len(same), size)]
    return Plan(tuple(batches))


def _keeps_state(model: Model, documents: NeedlePrompts, plan: Plan, sink: Sink) -> bool:
    """Checked once per run: a resumed one must read as the first start did."""
    import torch

    from repflow.capture.continuation import keeps_state

    if not sink.has(STATE):
        # several prompts where any batch has them: RWKV's state in transformers is right for one alone
        batch = min(plan.batches, key=lambda batch: (-len(batch[:CHECKED]), documents.prompts.lengths[batch[0]]))[
            :CHECKED
        ]
        ids = torch.tensor([documents.prompts[prompt].ids for prompt in batch])
        agrees = keeps_state(model, ids, [documents.candidates[documents.sample(prompt)] for prompt in batch])
        sink.write(STATE, {0: [{"kept": np.array([agrees])}]})
    ((record,),) = sink.read(STATE).values()
    return bool(record["kept"][0])


def read_batch(model: Model, documents: NeedlePrompts, batch: Sequence[int], *, cached: bool, tokens: int) -> Records:
    """Log-probabilities of the candidates and the greedy answer of each prompt, from one reading of the batch."""
    import torch

    from repflow.capture.continuation import read_prompts, word_logprobs

    ids = torch.tensor([documents.prompts[prompt].ids for prompt in batch])
    continuation = read_prompts(model, ids, cached=cached)
    logprob = word_logprobs(continuation, [documents.candidates[documents.sample(prompt)] for prompt in batch])
    rows: list[list[int]] = [[] for _ in batch]
    if tokens:
        rows = continuation.greedy(tokens, getattr(model.tokenizer, "eos_token_id", None)).tolist()
    texts = [model.tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    return {
        # the first byte says that there is an answer: an array must not be empty
        prompt: [{"logprob": logprob[place], "answer": np.frombuffer(b" " + text.encode(), dtype=np.uint8)}]
        for place, (prompt, text) in enumerate(zip(batch, texts, strict=True))
    }
