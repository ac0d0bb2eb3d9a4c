"""What a study is, and the one way in which all of them run.

A study is a config (`repflow.studies.engine.parts`), `check` (the words of a request, without torch), `prepare` (what
loaded models will read, refused where it does not fit) and `compute` (the work, which keeps what it has finished in a
sink). `Study.conduct` does the rest: check, load, describe, name, open or resume the run, compute, finish.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from repflow.core.seconds import CLOCK, since
from repflow.studies.engine.loading import identity, load_model
from repflow.studies.engine.naming import Names, known_name
from repflow.studies.engine.prompts import readable

if TYPE_CHECKING:
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Finding, Result
    from repflow.models import Model
    from repflow.store import RunFolder
    from repflow.studies.engine.cell import Share, Work
    from repflow.studies.engine.sink import RunSink
    from repflow.studies.engine.size import Size

C = TypeVar("C")
DESCRIPTION = 150_000
"""Bytes of run.json, manifest and result.json."""
NUMBER = 4
"""Bytes of a stored number."""
FLOPS_PER_PARAMETER = 2
"""One multiplication and one addition per parameter and token; attention's own share is left out."""
LEAKY = "leaky"
"""Code of the finding on a language model that reads the tokens it predicts; no result of one goes without it."""
ONE = "model"
"""Label of a model that is the only one of its study."""
SHARE = "share"
"""Line of a manifest behind which a share of a run is done."""


@dataclass
class Job(Generic[C]):
    """A request that is ready to be computed.

    Attributes:
        config: what to do; where prompts were given from Python it says what they are.
        models: loaded models by their label, `model` for the only one.
        prompts: what they read; None for a study without prompts.
        total: prompts to be read, for the progress display.
        stored: the config as the run keeps it; see `Study.stored`.
        provenance: what the work runs with, stored when the run starts; see `describe`.
        facts: what the result adds to it: models and prompts.
        digests: computes those of weights and prompts.
    """

    config: C
    models: dict[str, Model]
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


@dataclass(frozen=True)
class Call:
    """How a study is called, beside its config; see `BaseStudy.run`.

    Attributes:
        models: loaded ones by label.
        given: inputs instead of the config's own.
        out: folder of runs.
        name: of the run.
        progress: called after each batch.
        begun: seconds by phase when it was called.
    """

    models: dict[str, Model] | None
    given: Any
    out: Path | None
    name: str | None
    progress: Progress | None
    begun: dict[str, float]


class BaseStudy(ABC, Generic[C]):
    """One kind of question about models; `repflow.core.studies` lists them.

    Most are a `Study`. One that is made of other runs inherits this and says in `conduct` how it comes about.

    Attributes:
        name: its name in the table of studies.
        config: its config, a dataclass.
        summary: help of its command; the first line is also shown in the list of commands.
        usual: models of the zoo that the command uses by default, and what its help calls them.
        usual_words: see `usual`.
        one_model: whether it takes one loaded model, which cells of a grid then share.
        counts: what its progress counts.
        pass_kinds: kinds of passes that `flops` adds up: forward, backward, training.
        named: whether the stored config holds the name under `study`; the first studies are recognised by their fields.
    """

    name: ClassVar[str]
    config: ClassVar[type]
    summary: ClassVar[str] = ""
    usual: ClassVar[tuple[str, ...]] = ("gpt-neox", "mamba2")
    usual_words: ClassVar[str] = "gpt-neox and mamba2 of the zoo"
    one_model: ClassVar[bool] = True
    counts: ClassVar[str] = "prompts"
    pass_kinds: ClassVar[tuple[str, ...]] = ("forward",)
    named: ClassVar[bool] = True

    @abstractmethod
    def check(self, config: C) -> None:
        """Refuse what can be seen to be wrong before a model is loaded, which may take minutes; no torch."""

    @abstractmethod
    def names(self, config: C) -> Names:
        """Default names of the run; see `spell`."""

    @abstractmethod
    def conduct(self, config: C, call: Call) -> Result:
        """Do what a call of `run` asks for."""

    def run(
        self,
        config: C,
        *,
        model: Model | None = None,
        models: Mapping[str, Model] | None = None,
        given: Any = None,
        out: str | Path | None = None,
        name: str | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Run the study, or read it where it is finished.

        Args:
            config: what to do.
            model: loaded, instead of the one that the config names.
            models: several by label, instead of those that the config names.
            given: prompts, a task, needles ...: inputs to use instead of the config's own.
            out: folder of runs; None keeps the result in memory only.
            name: name of the run in `out`; by default from model, task and every option that changes the result.
            progress: called after each batch.
        """
        from repflow.store.name import check_name

        if name is not None:
            check_name(name)
        loaded = {ONE: model} if model is not None else None if models is None else dict(models)
        call = Call(loaded, given, None if out is None else Path(out), name, progress, CLOCK.seconds())
        return self.conduct(config, call)

    def run_name(self, config: C) -> str:
        """Default name of the run."""
        return self.names(readable(config)).current

    def find_name(self, config: C, out: Path) -> str:
        """As `run_name`, or that of an earlier version where `out` holds the same request under it."""
        config = readable(config)
        return known_name(out, self.names(config), identity(config))

    def cell_word(self, config: C) -> str:
        """Beginning of the name of a grid's cell, whose end is a hash of everything."""
        return self.names(readable(config)).current

    def again(self, stored: Mapping[str, Any]) -> C:
        """The request of a stored run, so that what is missing can be computed."""
        known = {entry.name for entry in fields(self.config)}
        request: C = self.config(**{key: value for key, value in stored.items() if key in known})
        return request

    def together(self, config: C, models: Sequence[str]) -> tuple[C, str]:
        """The config for several models that are put side by side, and what a user should know of the change."""
        from repflow.studies.engine.prompts import matched_models

        if not hasattr(config, "match_with"):
            return config, ""
        request: Any = config
        return replace(request, match_with=matched_models(models, config)), ""

    def of_several(self) -> BaseStudy[C]:
        """The study as it runs on each of several models."""
        return self

    def joint(self, results: Sequence[Result], config: C, out: Path) -> list[tuple[str, Result]]:
        """Names and results of runs that only several models give, stored in `out`."""
        return []

    def further(self, config: C, name: str) -> list[str]:
        """Names of runs that are stored beside a run."""
        return []

    def reads(self, config: C) -> tuple[int, int]:
        """Prompts and tokens that pass through a model, at most; for the cost of a grid."""
        request: Any = config
        if not hasattr(request, "length"):
            return 0, 0  # no prompts
        prompts = request.samples * (1 if getattr(request, "twin", None) is None else 2)
        return prompts, prompts * request.length

    def size(self, config: C) -> Size | None:
        """Size of the model that it runs, from files alone; None where that is not known. No weights are loaded."""
        from repflow.studies.engine.size import model_size

        request: Any = config
        if not hasattr(request, "model"):
            return None
        return model_size(request.model, trust_remote_code=request.trust_remote_code)

    def flops(self, config: C, size: Size) -> float:
        """Operations: a forward pass of every token; a study with gradients adds its backward passes."""
        return float(FLOPS_PER_PARAMETER * (size.parameters or 0) * self.reads(config)[1])

    def pass_seconds(self, config: C, size: Size, rate: float) -> float:
        """Seconds of its passes on one GPU; a study that knows better than FLOP over FLOP/s says so.

        Args:
            config: what to do.
            size: of its model.
            rate: FLOP/s.
        """
        return self.flops(config, size) / rate

    def feature_bytes(self, config: C, size: Size) -> int:
        """The part of `disk_bytes` that states take which are read again."""
        return 0

    def disk_bytes(self, config: C, size: Size) -> int:
        """Rough size of a run; what describes it depends little on the request."""
        return DESCRIPTION

    def result_place(self, folder: Path) -> Path:
        """Where the result of a run is stored that was requested by the name of this folder."""
        return folder

    def place(self, folder: Path) -> tuple[Path, str]:
        """Folder of runs and name with which a stored run was made."""
        return folder.parent, folder.name

    def work(self, config: C, out: Path, name: str, split: int = 1) -> Work:
        """What of a run's work many workers can do, before `run` puts it together; by default the run itself.

        Args:
            config: what to do.
            out: folder of runs.
            name: of the run.
            split: see `shares`.
        """
        from repflow.studies.engine.cell import Cell, Work

        return Work(out, (Cell(name, config, self.shares(config, split)),))

    def shares(self, config: C, split: int) -> int:
        """Into how many parts the work of a run is divided by `run_share`; 1 where it is one piece.

        Args:
            config: what to do.
            split: parts that a user asks for, where prompts can be divided at will.
        """
        return 1

    def run_share(
        self,
        config: C,
        share: Share,
        *,
        models: dict[str, Model] | None,
        out: Path,
        name: str,
        progress: Progress | None,
    ) -> None:
        """Do a part of a run's work and store it as a run without a result; see `repflow.store.merge`."""
        raise NotImplementedError(f"the work of {self.name} cannot be divided")

    def join(self, out: Path, name: str, shares: Sequence[Path]) -> None:
        """Bring what shares have stored beside their runs to its place beside the whole run."""

    def check_request(self, config: C, name: str | None = None) -> None:
        """Refuse a wrong request, and a name that no run can have."""
        from repflow.store.name import check_name

        if name is not None:
            check_name(name)
        self.check(config)


class Study(BaseStudy[C], Generic[C, J]):
    """A study that computes: it says what is prepared and what is computed, and the engine does the rest."""

    def check_given(self, config: C) -> None:
        """As `check`, for prompts that were given ready: what the config says about prompts is ignored."""
        self.check(config)

    def load(self, config: C) -> dict[str, Model]:
        """The models that the config names."""
        return {ONE: load_model(config)}

    @abstractmethod
    def prepare(self, config: C, models: dict[str, Model], given: Any, progress: Progress | None) -> J:
        """Make prompts and options; refuse what these models cannot do, so that nothing is left behind.

        Args:
            config: what to do.
            models: loaded.
            given: ready prompts, a task, needles ...: what a call from Python passed instead of the config's own.
            progress: receives what is being done.
        """

    @abstractmethod
    def compute(self, job: J, sink: Sink, progress: Progress | None) -> Result:
        """Do the work; what the sink already has is not computed again. The engine adds config and provenance."""

    def stored(self, job: J) -> dict[str, Any]:
        """The config as stored: what was requested."""
        content = ({"study": self.name} if self.named else {}) | identity(job.config)
        if ONE in job.models:
            model = job.model
            content["model"] = content["model"] or model.spec
            if "ablate" in content:
                content["ablate"] = list(model.ablations)
        return content

    def digests(self, job: J) -> dict[str, Any]:
        """What must be the same for a run to resume, besides the weights."""
        return {} if job.prompts is None else {"prompts": job.prompts.digest()}

    def machine(self, job: J) -> dict[str, Any]:
        """What the work runs with, stored when the run starts."""
        from repflow.capture.provenance import machine

        model = job.models.get(ONE)
        if model is None:
            return machine()
        return {
            **machine(str(model.device)),
            "dtype": str(model.dtype).removeprefix("torch."),
            "init": model.init,
            "ablate": list(model.ablations),
            "scan": model.scans.setting,
        }

    def identities(self, job: J) -> dict[str, Any]:
        """Identities of models that are not loaded yet, by their label."""
        return {}

    def before(self, job: J, out: Path, name: str) -> None:
        """What comes before the run's folder is opened."""

    def after(self, job: J, folder: RunFolder, result: Result) -> Result:
        """What comes once the run is finished, in this call or in an earlier one."""
        return result

    def share(self, job: J, sink: RunSink, share: Share, progress: Progress | None) -> None:
        """Do a part of the work: pieces that `share` has, kept under the names that `compute` looks for."""
        raise NotImplementedError(f"the work of {self.name} cannot be divided")

    def before_share(self, job: J, out: Path, name: str, share: Share) -> None:
        """What comes before the folder of a share is opened."""
        self.before(job, out, name)

    def conduct(self, config: C, call: Call) -> Result:
        """Check, load, prepare, describe, name, open or resume the run, compute, finish."""
        from repflow.capture.run import MemorySink

        job = _made_ready(self, config, call)
        if call.out is None:
            result = _computed(self, job, MemorySink(), call.progress)
            result.provenance["seconds"] = since(call.begun)
            return result
        job.take_digests()
        return _kept(self, job, call.out, call)

    def run_share(
        self,
        config: C,
        share: Share,
        *,
        models: dict[str, Model] | None,
        out: Path,
        name: str,
        progress: Progress | None,
    ) -> None:
        """Check, load, prepare, describe, open or resume the folder, do the share, note that it is done."""
        from repflow.studies.engine.opening import open_run
        from repflow.studies.engine.sink import RunSink

        job = _made_ready(self, config, Call(models, None, out, name, progress, CLOCK.seconds()))
        job.take_digests()
        self.before_share(job, out, name, share)
        identities = {"models": job.models, "others": self.identities(job)}
        with open_run(out, name, config=job.stored, provenance=job.provenance, **identities) as folder:
            if not folder.events(SHARE):
                self.share(job, RunSink(folder), share, progress)
                folder.record(SHARE, {"number": share.number, "count": share.count})


def _made_ready(study: Study[C, J], config: C, call: Call) -> J:
    """A request with loaded models, prompts and everything that a run stores of it."""
    ready = call.given is not None
    (study.check_given if ready else study.check)(config)
    config = config if ready else readable(config)
    loaded = study.load(config) if call.models is None else call.models
    config = config if ready else readable(config, *loaded.values())
    job = study.prepare(config, loaded, call.given, call.progress)
    describe(study, job)
    for model in job.models.values():
        model.scans.forget()
    return job


def describe(study: Study[C, J], job: J) -> None:
    """Config and provenance as stored: what was requested, and what it runs with."""
    from repflow.capture.provenance import model_facts
    from repflow.studies.engine.opening import weights_key

    job.stored = study.stored(job)
    job.facts = {"model": model_facts(job.model)} if ONE in job.models else {}
    job.provenance = study.machine(job)
    models = dict(job.models)  # a study may drop some while it works

    def digests() -> dict[str, Any]:
        weights = {weights_key(label): model.digest() for label, model in models.items()}
        models.clear()
        return {**weights, **study.digests(job)}

    job.digests = digests


def _kept(study: Study[C, J], job: J, out: Path, call: Call) -> Result:
    """The result of a stored run; what is missing is computed."""
    from repflow.studies.engine.opening import once
    from repflow.studies.engine.sink import RunSink

    called = call.name or known_name(out, study.names(job.config), job.stored)
    study.before(job, out, called)
    with once(
        out,
        called,
        lambda folder: _computed(study, job, RunSink(folder), call.progress),
        config=job.stored,
        provenance=job.provenance,
        models=job.models,
        others=study.identities(job),
        begun=call.begun,
        progress=call.progress,
    ) as (folder, result):
        return study.after(job, folder, result)


def _computed(study: Study[C, J], job: J, sink: Sink, progress: Progress | None) -> Result:
    if progress is not None and job.total:
        progress(0, job.total, 0)  # models are loaded, the work begins
    result = study.compute(job, sink, progress)
    job.take_digests()
    result.config = job.stored
    result.provenance = {**job.provenance, **job.facts, **result.provenance}
    notes = getattr(job.prompts, "findings", ())  # of prompts; a study may have put them where they belong
    result.findings += [finding for finding in notes if finding not in result.findings]
    for model in job.models.values():
        notes = [*model.scans.findings(), *(finding for finding in model.findings if finding.code == LEAKY)]
        result.findings += [note for note in notes if not any(_says(finding, note) for finding in result.findings)]
    return result


def _says(finding: Finding, note: Finding) -> bool:
    """Whether a finding is that of a model, or the same with the name of one of two models in front."""
    same = finding.code == note.code and finding.layer == note.layer
    return same and (finding.message == note.message or finding.message.endswith(f": {note.message}"))
