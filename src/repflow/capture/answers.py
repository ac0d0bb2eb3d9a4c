"""What the model itself says: greedy answers, and the answer's first token seen through every state (logit lens)."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repflow.capture.continuation import read_prompts
from repflow.capture.plan import BATCH_TOKENS
from repflow.core.errors import InputError, out_of_memory, teach
from repflow.models import Model
from repflow.tasks import Encoder, Prompts

LENS_BYTES = 256 << 20
"""Logits the lens holds at a time."""
DECODED_TOGETHER = 64
"""Prompts that a GPU answers at once; where they do not fit, half of them."""
SHORT = 3
"""Answers of up to this many characters count as whole words only: shorter ones occur in many texts by chance."""
ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case without punctuation, articles and extra blanks, as open-domain question answering compares answers.

    >>> normalise(" The  Nobel-Prize!")
    'nobelprize'
    """
    plain = ARTICLES.sub(" ", text.lower().translate(PUNCTUATION))
    return " ".join(plain.split())


def contains_answer(text: str, answers: Sequence[str]) -> bool:
    """Whether any answer occurs in the text, both normalised; an answer of punctuation alone is compared as it is.

    An answer of up to 3 characters must be a whole word: "9" occurs in "9", not in "1987".

    >>> contains_answer('The value is "9F-a1".', ["9f-a1"]), contains_answer("9f", ["9f-a1"])
    (True, False)
    """
    whole = normalise(text)
    return any(_stands(short, whole) if (short := normalise(answer)) else (answer in text) for answer in answers)


def _stands(answer: str, text: str) -> bool:
    return answer in text if len(answer) > SHORT else f" {answer} " in f" {text} "


def equal_length_batches(prompts: Prompts, samples: Sequence[int], *, tokens: int = BATCH_TOKENS) -> list[list[int]]:
    """Prompts that may be answered together: equal length, so that nothing is padded.

    Generation continues at the right end, so shorter prompts would need padding on the left, which corrupts the states
    of several architectures even under a mask.
    """
    by_length: dict[int, list[int]] = {}
    for sample in samples:
        by_length.setdefault(prompts.lengths[sample], []).append(sample)
    batches = []
    for length in sorted(by_length, reverse=True):
        same, size = by_length[length], max(1, tokens // length)
        batches += [same[i : i + size] for i in range(0, len(same), size)]
    return batches


def answer_batches(model: Model, prompts: Prompts, samples: Sequence[int]) -> list[list[int]]:
    """Prompts to answer together: on a GPU at least 64, since a single token of few rows leaves it idle."""
    if model.device.type == "cpu":
        return equal_length_batches(prompts, samples)
    longest = max((prompts.lengths[sample] for sample in samples), default=1)
    return equal_length_batches(prompts, samples, tokens=max(BATCH_TOKENS, DECODED_TOGETHER * longest))


def greedy_answers(
    model: Model, prompts: Prompts, batch: Sequence[int], *, tokens: int, cached: bool = True
) -> list[str]:
    """Most likely continuations of prompts of equal length, token by token.

    Args:
        model: with a head and a tokenizer.
        prompts: all prompts.
        batch: samples to answer, all of one length.
        tokens: most tokens of an answer; it ends earlier at the end-of-text token.
        cached: continue from the state kept of the prompts; see `repflow.capture.continuation.keeps_state`.
    """
    if model.head is None or model.tokenizer is None:
        got = f"{model.name} without {'head' if model.head is None else 'tokenizer'}"
        raise InputError(teach("a model with a head and a tokenizer", got, "pass --answers 0 or --tokenizer FOLDER"))
    assert len({prompts.lengths[sample] for sample in batch}) == 1, "prompts of one length"
    ids = torch.tensor([prompts.samples[sample].ids for sample in batch])
    try:
        end = getattr(model.tokenizer, "eos_token_id", None)
        answers = read_prompts(model, ids, cached=cached).greedy(tokens, end, last=True)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error) or len(batch) == 1:
            raise
        half = len(batch) // 2
        return [
            *greedy_answers(model, prompts, batch[:half], tokens=tokens, cached=cached),
            *greedy_answers(model, prompts, batch[half:], tokens=tokens, cached=cached),
        ]
    return [model.tokenizer.decode(row, skip_special_tokens=True) for row in answers.tolist()]


def answer_room(model: Model, prompts: Prompts, sample: int, tokens: int) -> int:
    """Tokens of answer that still fit the model after this prompt."""
    if model.max_length is None:
        return tokens
    return max(0, min(tokens, model.max_length - prompts.lengths[sample]))


def first_answer_token(encoder: Encoder, prompt: Any) -> int:
    """Id of the first token of the canonical answer, as it would follow the prompt; blanks before it are skipped.

    Where the tokenizer joins prompt and answer differently than it cut the prompt, the answer is cut on its own.
    """
    answer = str(prompt.answers[0])
    text = prompt.text or ""
    gap = "" if text[-1:].isspace() else " "
    before, whole = encoder.text_ids(text), encoder.text_ids(f"{text}{gap}{answer}")
    ids = whole[len(before) :] if text and whole[: len(before)] == before else encoder.text_ids(f"{gap}{answer}")
    for token in ids:
        if encoder.tokenizer.decode([token]).strip():
            return token
    raise InputError(teach("an answer with a visible token", repr(answer), "give every prompt a real answer"))


def logit_lens(model: Model, rows: Tensor, targets: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rank and log-probability of a token when a state is read by the model's own final norm and head.

    rank_i = 1 + #{v : z_iv > z_it}, log p_i = z_it - log sum_v exp z_iv with z = head(norm(h_i)); NaN where z is not
    finite.

    Args:
        model: with a head.
        rows: one state (sample, width), in the model's dtype.
        targets: the token of each sample.

    Returns:
        rank (sample,), 1 is the most likely, and log-probability (sample,) in nats, both float32.
    """
    ranks, probabilities = [], []
    size = max(1, LENS_BYTES // (4 * model.vocab_size))
    wanted = torch.tensor(targets)
    device = next(iter(model.final_norm.parameters()), torch.empty(0, device=model.device)).device
    with torch.inference_mode():
        for start in range(0, len(rows), size):
            part = rows[start : start + size].to(device)
            logits = model.logits(model.final_norm(part[None]))[0].to(torch.float32)
            token = wanted[start : start + size, None].to(logits.device)
            chosen = logits.gather(1, token)
            rank = 1 + (logits > chosen).sum(1)
            logprob = (chosen[:, 0] - logits.logsumexp(1)).cpu()
            ranks.append(torch.where(torch.isfinite(logprob), rank.cpu().float(), torch.nan))
            probabilities.append(torch.where(torch.isfinite(logprob), logprob, torch.nan))
    return torch.cat(ranks).numpy(), torch.cat(probabilities).numpy()
