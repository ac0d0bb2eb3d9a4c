"""Compare: which states of two models are alike on the same text, and how do checkpoints of one model change?

Two models give every state of A against every state of B (`repflow.studies.compare.pair`); a spec that names several
checkpoints gives a `step` axis (`repflow.studies.compare.steps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, nearest, teach
from repflow.core.tasks import NAMES
from repflow.studies.compare.config import (
    TWIN,
    CompareConfig,
    check_words,
    load_one,
    load_pair,
    names,
    twin_init,
    twin_seed,
)
from repflow.studies.compare.pair import Pair, pair_given
from repflow.studies.compare.steps import Steps
from repflow.studies.engine.naming import Names
from repflow.studies.engine.study import BaseStudy, Call, Study

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.studies.engine.size import Size

__all__ = ["CompareConfig", "check_request", "compare", "run", "run_name"]


class Compare(BaseStudy[CompareConfig]):
    """Two models, or the checkpoints of one."""

    name = "compare"
    config = CompareConfig
    one_model = False

    def check(self, config: CompareConfig) -> None:
        """Refuse wrong options, tasks and files."""
        check_words(config)

    def conduct(self, config: CompareConfig, call: Call) -> Result:
        """Compare two models (`models` labelled `a` and `b`, `given` paired prompts), or the checkpoints of one."""
        kind: Study[CompareConfig, Any] = Steps() if call.models is None and not config.model_b else Pair()
        return kind.conduct(config, call)

    def size(self, config: CompareConfig) -> Size | None:
        """Both models together: every prompt passes through each. Not known of the checkpoints of one."""
        from repflow.studies.engine.size import model_size

        second = config.model_a if config.model_b == TWIN else config.model_b
        sizes = [
            second and model_size(model, trust_remote_code=config.trust_remote_code)
            for model in (config.model_a, second)
        ]
        known = [size for size in sizes if size and size.parameters is not None]
        return known[0]._replace(parameters=sum(size.parameters or 0 for size in known)) if len(known) == 2 else None

    def names(self, config: CompareConfig) -> Names:
        """Models, task and length."""
        return names(config)


STUDY = Compare()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name


def compare(
    model_a: Any,
    model_b: Any = None,
    texts: str | Sequence[str] | Any = "text",
    *,
    out: str | Path | None = None,
    name: str | None = None,
    **options: Any,
) -> Result:
    """Compare two models on the same text, a model with its random twin, or the checkpoints of one model.

    Args:
        model_a: a loaded Model, a spec or a live transformers model; or a spec of several checkpoints, then without
            `model_b`: `MODEL@{step0,step1000}` or a folder of checkpoint folders.
        model_b: the same, or "twin".
        texts: a list of texts; a task (`random`, `text`, `kvpr`, `mdqa`, `FILE.jsonl`, or a `Task`); or token ids
            (batch, token) that mean the same to both models. `length` cuts texts and ids, `samples` takes the first.
        out: folder of runs to store the result in.
        name: name of the stored run.
        **options: any field of `CompareConfig`.

    Returns:
        Result: with `cka_cross` (state of A, state of B, sample) and the rest of `repflow.studies.compare.pair`, or the
        `step` axis of `repflow.studies.compare.steps`.
    """
    from repflow.tasks import parse_length
    from repflow.tasks.lines import is_jsonl

    known = {f.name for f in fields(CompareConfig)}
    if unknown := sorted(options.keys() - known):
        raise InputError(f"unknown option {unknown[0]!r}; {nearest(unknown[0], known)}")
    if "length" in options:
        options["length"] = parse_length(options["length"])
    config = CompareConfig(**options)
    is_task = isinstance(texts, str | Path) and (str(texts) in NAMES or is_jsonl(str(texts)))
    config = replace(config, task=str(texts)) if is_task else config
    if model_b is None:
        if not isinstance(model_a, str | Path) or not is_task:
            expected = "a second model, or a spec of several checkpoints and a task"
            raise InputError(teach(expected, type(model_a).__name__, "pass model_b, or model_b='twin'"))
        return run(replace(config, model_a=str(model_a)), out=out, name=name)
    a, b = _live_pair(model_a, model_b, config)
    config = replace(config, model_a=a.spec, model_b=TWIN if _is_twin(model_b) else b.spec)
    same = _is_twin(model_b) and a.ablations == b.ablations
    config = replace(config, ablate=list(a.ablations), ablate_b=[] if same else list(b.ablations))
    paired = None
    if not is_task:
        paired = pair_given(texts, config, a, b, options)
    return run(config, models={"a": a, "b": b}, given=paired, out=out, name=name)


def _is_twin(model: Any) -> bool:
    return isinstance(model, str) and model == TWIN


def _live_pair(model_a: Any, model_b: Any, config: CompareConfig) -> tuple[Model, Model]:
    if isinstance(model_a, str | Path) and _is_twin(model_b):
        return load_pair(replace(config, model_a=str(model_a), model_b=TWIN))
    from repflow.interventions import ablate

    a = _live(model_a, config, config.init, config.tokenizer, config.ablate)
    if _is_twin(model_b):
        from repflow.models import load

        b = load(a.network, init=twin_init(config), tokenizer=a.tokenizer, seed=twin_seed(config, a), scan=config.scan)
        return a, ablate(b, config.ablate_b or a.ablations)
    b = _live(model_b, config, config.init_b or "trained", config.tokenizer_b, config.ablate_b)
    if b.tokenizer is None and config.tokenizer is not None:
        b.tokenizer = a.tokenizer
    return a, b


def _live(model: Any, config: CompareConfig, init: str, tokenizer: str | None, ablations: Sequence[str]) -> Model:
    from repflow.interventions import ablate
    from repflow.models import Model, load

    if isinstance(model, str | Path):
        return load_one(config, str(model), init, tokenizer, config.seed, ablations)
    if not isinstance(model, Model):
        model = load(model, init=init, tokenizer=tokenizer, seed=config.seed, scan=config.scan)
    return ablate(model, ablations)
