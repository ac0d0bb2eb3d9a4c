"""What a study is, and the one way in which all of them run.

A study is a config (`repflow.studies.engine.parts`), `check` (the words of a request, without torch), `prepare` (what
loaded models will read, refused where it does not fit) and `compute` (the work, which keeps what it has finished in a
sink). `run_study` does the rest: check, load, describe, name, open or resume the run, compute, finish.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from repflow.core.seconds import CLOCK, since
from repflow.studies.engine.loading import identity, load_model
from repflow.studies.engine.naming import Names, known_name
from repflow.studies.engine.phase import STORED, tell

if TYPE_CHECKING:
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.store import RunFolder

C = TypeVar("C")
ONE = "model"
"""Label of a model that is the only one of its study."""


@dataclass
class Job(Generic[C]):
    """A request that is ready to be computed.

    Attributes:
        config: what to do; where prompts were given from Python it says what they are.
        models: loaded models by their label, `model` for the only one.
        prompts: what they read; None for a study without prompts.
        total: prompts to be read, for whoever shows the progress.
        stored: the config as the run keeps it; see `Study.stored`.
        provenance: with what the work is done, as the run keeps it from its start; see `describe`.
        facts: what the result says beside it: models and prompts.
        digests: computes those of weights and prompts.
    """

    config: C
    models: Mapping[str, Model]
    prompts: Any
    total: int = 0
    stored: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    digests: Callable[[], dict[str, Any]] = dict

    def take_digests(self) -> None:
        """Put digests of weights and prompts into the provenance, once."""
        if "digests" not in self.provenance:
            self.provenance["digests"] = self.digests()

    @property
    def model(self) -> Model:
        """The only model."""
        return self.models[ONE]


J = TypeVar("J", bound=Job)


class Study(ABC, Generic[C, J]):
    """One kind of question put to models; `repflow.core.studies` lists them.

    Attributes:
        name: its name in the table of studies.
        config: its config, a dataclass.
        named: whether the stored config holds the name under `study`; the first studies are recognised by their fields.
    """

    name: ClassVar[str]
    config: ClassVar[type]
    named: ClassVar[bool] = True

    @abstractmethod
    def check(self, config: C) -> None:
        """Refuse what can be seen to be wrong before a model is loaded, which may take minutes; no torch."""

    def check_given(self, config: C) -> None:
        """As `check`, for prompts that were given ready: what the config says of prompts is not looked at."""
        self.check(config)

    def load(self, config: C) -> dict[str, Model]:
        """The models that the config names."""
        return {ONE: load_model(config)}

    @abstractmethod
    def prepare(self, config: C, models: Mapping[str, Model], given: Any, progress: Progress | None) -> J:
        """Make prompts and options; refuse what these models cannot do, so that nothing is left behind.

        Args:
            config: what to do.
            models: loaded.
            given: ready prompts, a task, needles ...: what a call from Python brought instead of the config's own.
            progress: told what is being done.
        """

    @abstractmethod
    def compute(self, job: J, sink: Sink, progress: Progress | None) -> Result:
        """Do the work; what the sink already has is not computed again. The engine adds config and provenance."""

    def stored(self, job: J) -> dict[str, Any]:
        """The config as the run keeps it: what was asked."""
        kept = ({"study": self.name} if self.named else {}) | identity(job.config)
        if ONE in job.models:
            model = job.model
            kept |= {"model": kept["model"] or model.spec} | (
                {"ablate": list(model.ablations)} if "ablate" in kept else {}
            )
        return kept

    def digests(self, job: J) -> dict[str, Any]:
        """What must be the same for a run to go on, beside the weights."""
        return {} if job.prompts is None else {"prompts": job.prompts.digest()}

    def before(self, job: J, out: Path, name: str) -> None:
        """What comes before the run's folder is opened."""

    def after(self, job: J, folder: RunFolder, result: Result) -> Result:
        """What comes once the run is finished, in this call or in an earlier one."""
        return result

    @abstractmethod
    def names(self, config: C) -> Names:
        """Names of the run where none is given; see `spell`."""

    def run_name(self, config: C) -> str:
        """Name of the run where none is given."""
        return self.names(config).current

    def cell_word(self, config: C) -> str:
        """Beginning of the name of a grid's cell, whose end is a hash of everything."""
        return self.names(config).current

    def check_request(self, config: C, name: str | None = None) -> None:
        """Refuse a wrong request, and a name that no run can have."""
        from repflow.store.name import check_name

        if name is not None:
            check_name(name)
        self.check(config)


def describe(study: Study[C, J], job: J) -> None:
    """Config and provenance as stored: what was asked, and with what it is done."""
    from repflow.studies.engine.opening import weights_key
    from repflow.studies.engine.provenance import machine, model_facts

    job.stored = study.stored(job)
    model = job.models.get(ONE)
    if model is None:
        facts: dict[str, Any] = machine()
    else:
        facts = {
            **machine(str(model.device)),
            "dtype": str(model.dtype).removeprefix("torch."),
            "init": model.init,
            "ablate": list(model.ablations),
            "scan": model.scans.setting,
        }
        job.facts = {"model": model_facts(model)}
    weights = {weights_key(label): model.digest() for label, model in job.models.items()}
    job.provenance = {**facts, "digests": {**weights, **study.digests(job)}}


def run_study(
    study: Study[C, J],
    config: C,
    *,
    models: Mapping[str, Model] | None = None,
    given: Any = None,
    out: str | Path | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a study, or read it where it is finished.

    Args:
        study: which.
        config: what to do.
        models: loaded models by label, instead of those that the config names.
        given: what stands for the config's prompts; see `Study.prepare`.
        out: folder of runs; None keeps the result in memory only.
        name: name of the run in `out`; by default from model, task and every option that changes the result.
        progress: called after each batch.
    """
    from repflow.capture.run import MemorySink
    from repflow.store.name import check_name

    begun = CLOCK.seconds()
    if name is not None:
        check_name(name)
    (study.check if given is None else study.check_given)(config)
    loaded = study.load(config) if models is None else models
    job = study.prepare(config, loaded, given, progress)
    describe(study, job)
    for model in job.models.values():
        model.scans.forget()
    if out is None:
        result = _computed(study, job, MemorySink(), progress)
        result.provenance["seconds"] = since(begun)
        return result
    job.take_digests()
    return _kept(study, job, Path(out), name, progress, begun)


def _kept(
    study: Study[C, J], job: J, out: Path, name: str | None, progress: Progress | None, begun: dict[str, float]
) -> Result:
    """The result of a stored run, computed as far as it is not there yet."""
    from repflow.store import load_result
    from repflow.studies.engine.opening import open_run
    from repflow.studies.engine.sink import RunSink

    called = name or known_name(out, study.names(job.config), job.stored)
    study.before(job, out, called)
    with open_run(out, called, config=job.stored, provenance=job.provenance, models=job.models) as folder:
        if folder.finished:
            tell(progress, STORED)
            result = load_result(folder.path)
        else:
            result = _computed(study, job, RunSink(folder), progress)
            folder.finish(result)
            result.provenance["seconds"] = since(begun)
            folder.record("seconds", result.provenance["seconds"])
        return study.after(job, folder, result)


def _computed(study: Study[C, J], job: J, sink: Sink, progress: Progress | None) -> Result:
    if progress is not None:
        progress(0, job.total, 0)  # models are loaded, the work begins
    result = study.compute(job, sink, progress)
    job.take_digests()
    result.config = job.stored
    result.provenance = {**job.provenance, **job.facts, **result.provenance}
    for model in job.models.values():
        result.findings += [finding for finding in model.scans.findings() if finding not in result.findings]
    return result
