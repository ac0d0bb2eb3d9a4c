"""Needle: does the model find a false statement in a long document, and does it matter where it is?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, nearest, teach
from repflow.studies.engine.naming import Names
from repflow.studies.engine.phase import tell
from repflow.studies.engine.study import ONE, Job, Study
from repflow.studies.needle.config import NeedleConfig, check_words, names

if TYPE_CHECKING:
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.tasks.needle.needles import Needle
    from repflow.tasks.needle.prompts import NeedlePrompts

__all__ = ["NeedleConfig", "check_request", "make_needle_prompts", "needle", "run", "run_name"]


@dataclass
class NeedleJob(Job[NeedleConfig]):
    """Needles in their documents."""

    documents: NeedlePrompts | None = None


class NeedleStudy(Study[NeedleConfig, NeedleJob]):
    """Does the model find a false statement in a long document, and does it matter where it is?"""

    name = "needle"
    config = NeedleConfig
    summary = """Hide false statements in long documents and see whether MODELs find them, by length and position.

    "The capital of France is Madrid." The question is answered greedily, and the planted word is ranked against the
    true one and others, so that small models give a signal too. An interrupted run resumes.
    """
    usual = ("gpt-neox", "mamba2", "hybrid")
    usual_words = "gpt-neox, mamba2 and hybrid of the zoo"

    def check(self, config: NeedleConfig) -> None:
        """Refuse wrong options and files."""
        check_words(config)

    def prepare(
        self, config: NeedleConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> NeedleJob:
        """Documents for this model's tokenizer; `given` are ready needles."""
        from repflow.studies.needle.reading import check_model

        model = models[ONE]
        _check_reader(config, model)
        tell(progress, "making prompts")
        documents = make_needle_prompts(config, model, given)
        check_model(config, model, documents)
        return NeedleJob(config, models, documents.prompts, len(documents.prompts), documents=documents)

    def stored(self, job: NeedleJob) -> dict[str, Any]:
        """Its task is needle."""
        return {"task": "needle"} | super().stored(job)

    def digests(self, job: NeedleJob) -> dict[str, Any]:
        """Also the words that are ranked."""
        assert job.documents is not None
        ranked = repr([needle.candidates for needle in job.documents.needles]).encode()
        return {**super().digests(job), "candidates": hashlib.sha256(ranked).hexdigest()}

    def compute(self, job: NeedleJob, sink: Sink, progress: Progress | None) -> Result:
        """Read the prompts and score what the model says."""
        assert job.documents is not None
        return _result(job.config, job.model, job.documents, sink, progress)

    def together(self, config: NeedleConfig, models: Sequence[str]) -> tuple[NeedleConfig, str]:
        """The same text for all, unless each fills its own tokens."""
        if config.match != "text":
            return config, ""
        return replace(config, match_with=sorted({*models, *config.match_with})), ""

    def reads(self, config: NeedleConfig) -> tuple[int, int]:
        """A prompt per needle, length and position."""
        each = config.samples * len(config.positions)
        return each * len(config.lengths), each * sum(map(int, config.lengths))

    def names(self, config: NeedleConfig) -> Names:
        """Model, weights and the largest length."""
        return names(config)


STUDY = NeedleStudy()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name


def _check_reader(config: NeedleConfig, model: Model) -> None:
    if model.head is None:
        raise InputError(teach("a model with a head", f"{model.name} without one", "load the causal language model"))
    if model.tokenizer is None:
        raise InputError(teach("a model with a tokenizer", f"{model.name} without one", "pass --tokenizer FOLDER"))
    longest = max(map(int, config.lengths))
    if not config.match_with and model.max_length is not None and longest > model.max_length:
        # with other tokenizers a prompt may take fewer tokens here; `check_model` counts them
        remedy = f"pass --lengths up to {model.max_length} less the answer's tokens"
        raise InputError(teach(f"prompts within the {model.max_length} of {model.name}", f"{longest} tokens", remedy))


def make_needle_prompts(config: NeedleConfig, model: Model, needles: Sequence[Needle] | None = None) -> NeedlePrompts:
    """Needles, haystack and prompts for this model's tokenizer, within the lengths of those it is matched with."""
    from repflow.studies.engine.prompts import other_encoders
    from repflow.tasks import Encoder
    from repflow.tasks.chat import ChatEncoder
    from repflow.tasks.needle.haystack import FileProse, MadeUpProse
    from repflow.tasks.needle.prompts import needle_prompts

    prose = FileProse(config.haystack, config.samples) if config.haystack else MadeUpProse(config.seed)
    chosen = list(needles) if needles is not None else _needles(config, "\n".join(getattr(prose, "text", [])))
    if isinstance(prose, FileProse):
        prose.check(chosen)
    encoders = [Encoder(model.tokenizer, config.bos, model.bos_token_id, limit=model.max_length)]
    if config.match == "text":
        encoders += other_encoders(config.match_with, config)
    if config.chat_template:
        encoders = [ChatEncoder(encoder) for encoder in encoders]
    return needle_prompts(chosen, prose, config.sweep, encoders)


def _needles(config: NeedleConfig, text: str) -> list[Needle]:
    from repflow.tasks.needle.needles import file_needles, made_needles

    if config.needles is None:
        avoid = text if config.skip_told else ""
        return made_needles(config.samples, config.seed, candidates=config.candidates, avoid=avoid)
    own = file_needles(config.needles)
    if len(own) < config.samples:
        got = f"{len(own)} in {config.needles}"
        raise InputError(teach(f"{config.samples} needles", got, f"pass --samples {len(own)} or more lines"))
    _check_sizes(own[: config.samples], f" in {config.needles}")
    return own[: config.samples]


def _check_sizes(needles: Sequence[Needle], where: str = "") -> None:
    sizes = {len(needle.candidates) for needle in needles}
    if len(sizes) > 1:
        got = f"{min(sizes)} to {max(sizes)}{where}"
        raise InputError(teach("as many candidates for each needle", got, "give all of them equally many 'others'"))


def _checked(needles: Any) -> list[Needle]:
    """Needles given from Python, checked like a file of needles."""
    from repflow.tasks.needle.needles import Needle, check_needle

    if not isinstance(needles, Sequence) or not needles or not all(isinstance(entry, Needle) for entry in needles):
        expected = "Needle objects (repflow.tasks.needle.needles), or FILE.jsonl"
        raise InputError(teach(expected, f"{needles!r}"[:80], "leave needles out for built-in ones"))
    for number, entry in enumerate(needles):
        check_needle(entry, f"needle {number}")
    _check_sizes(needles)
    return list(needles)


def _result(
    config: NeedleConfig,
    model: Model,
    documents: NeedlePrompts,
    sink: Any,
    progress: Progress | None,
) -> Result:
    from repflow.core.results import Finding
    from repflow.studies.needle.reading import answer_tokens, read_batches
    from repflow.studies.needle.result import needle_result

    logprobs, answers, cached = read_batches(config, model, documents, sink, progress)
    tokens = answer_tokens(config, model, documents)
    result = needle_result(documents, logprobs, answers, answered=tokens > 0)
    result.provenance = {
        "answer_tokens": tokens,
        "reads": "from the model's state" if cached else "whole",
        **result.provenance,
    }
    findings = [*model.findings, *documents.prompts.findings, *result.findings, *model.scans.findings()]
    if not cached:
        text = "the model keeps no state that agrees with its forward pass: every candidate was read with its prompt"
        findings.append(Finding("no_cache", None, text))
    result.findings = list(dict.fromkeys(findings))
    return result


def needle(
    model: Any,
    *,
    needles: Any = None,
    out: str | Path | None = None,
    name: str | None = None,
    **options: Any,
) -> Result:
    """Hide counterfactual statements in documents and see whether a model finds them.

    Args:
        model: a loaded Model, a spec, or a live transformers model.
        needles: `FILE.jsonl`, or Needle objects; None draws built-in ones.
        out: folder of runs to store the result in.
        name: name of the stored run.
        **options: any field of `NeedleConfig`, such as `lengths=[256, 512]`.

    Returns:
        Result: `answer_correct`, `rank`, `log_odds` ... (length, position, sample); `slope/NAME` (length, sample).
    """
    from repflow.studies.engine.entry import prepared

    known = {f.name for f in fields(NeedleConfig)} - {"model", "needles"}
    if unknown := sorted(options.keys() - known):
        raise InputError(f"unknown option {unknown[0]!r}; {nearest(unknown[0], known)}")
    own = None if needles is None or isinstance(needles, (str, Path)) else _checked(needles)
    if own is not None:
        options["samples"] = len(own)
    elif needles is not None:
        options["needles"] = str(needles)
    for key in ("lengths", "positions"):  # a lone number stands for itself
        if key in options and isinstance(options[key], int | float):
            options[key] = [options[key]]
    config, loaded, _ = prepared(NeedleConfig, model, None, options)
    return run(config, model=loaded, given=own, out=out, name=name)
