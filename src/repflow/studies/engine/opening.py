"""Opening a study's run folder: one check, for every study, that the models are those it was started with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.seconds import since
from repflow.studies.engine.phase import STORED, tell

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.store import RunFolder


def open_run(
    out: str | Path,
    name: str,
    *,
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    models: Mapping[str, Model],
    others: Mapping[str, Any] | None = None,
) -> RunFolder:
    """Create or resume a run that loaded models take part in.

    Args:
        out: folder of runs.
        name: name of the run.
        config: what was requested.
        provenance: what it runs with; `digests` holds `weights`, or `weights_LABEL` of several models.
        models: loaded models by their label, `model` for the only one.
        others: identities of models that are not loaded, by their label.

    Raises:
        ConfigChangedError: the folder holds a run of another request or another model; names the key.
    """
    from repflow.models.identity.record import model_identity
    from repflow.store import RunFolder

    identities = {label: model_identity(model) for label, model in models.items()}
    return RunFolder.open(
        out,
        name,
        config=config,
        provenance={**provenance, "identity": identities | dict(others or {})},
        earlier={weights_key(label): model.sha256 for label, model in models.items()},
    )


@contextmanager
def once(
    out: Path,
    name: str,
    compute: Callable[[RunFolder], Result],
    *,
    begun: dict[str, float] | None = None,
    progress: Progress | None = None,
    **opening: Any,
) -> Iterator[tuple[RunFolder, Result]]:
    """The open folder of a run and its result, which is computed and stored unless it is there.

    Args:
        out: folder of runs.
        name: name of the run.
        compute: does the work; what the folder already has need not be computed again.
        begun: seconds by phase at the start of the work, so that the run keeps those that it took.
        progress: receives that the run was stored already.
        opening: config, provenance and models; see `open_run`.
    """
    from repflow.store import load_result

    with open_run(out, name, **opening) as folder:
        if folder.finished:
            tell(progress, STORED)
            result = load_result(folder.path)
        else:
            result = compute(folder)
            _finish(folder, result, begun)
        yield folder, result


def _finish(folder: RunFolder, result: Result, begun: dict[str, float] | None) -> None:
    folder.finish(result)
    if begun is not None:
        result.provenance["seconds"] = since(begun)
        folder.record("seconds", result.provenance["seconds"])


def keep_result(
    result: Result,
    out: str | Path,
    name: str,
    provenance: Mapping[str, Any],
    begun: dict[str, float] | None = None,
) -> Result:
    """Store a result that was computed in one go, from numbers or from other runs; an existing one is replaced.

    Two commands side by side that share their runs end at the same moment: the later one waits for the earlier.

    Args:
        result: with its config.
        out: folder of runs.
        name: name of the run.
        provenance: what it was computed with; `digests` identifies its inputs.
        begun: seconds by phase at the start of the work, so that the run keeps those that it took.
    """
    with _open_free(Path(out), name, config=result.config, provenance=provenance) as folder:
        result.provenance = {**provenance, **result.provenance}
        _finish(folder, result, begun)
    return result


def keep_judged(
    judge: Callable[[], Result],
    out: Path,
    name: str,
    *,
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    begun: dict[str, float],
) -> Result:
    """As `keep_result`, for a result that long work leads to: a run of another request is refused before it starts.

    Args:
        judge: does the work.
        out: folder of runs.
        name: name of the run.
        config: of the result.
        provenance: what it is computed with.
        begun: seconds by phase at the start of the work.
    """
    from repflow.store import RunFolder

    with RunFolder.open(out, name, config=config, provenance=provenance) as folder:
        result = judge()
        result.provenance = {**provenance, **result.provenance}
        _finish(folder, result, begun)
    return result


def _open_free(out: Path, name: str, *, config: Mapping[str, Any], provenance: Mapping[str, Any]) -> RunFolder:
    """Open a run as soon as no other process writes to it; one that this process itself holds is refused."""
    from repflow.core.errors import RunLockedError
    from repflow.store import RunFolder
    from repflow.store.lock import wait_for_writer

    while True:
        try:
            return RunFolder.open(out, name, config=config, provenance=provenance)
        except RunLockedError:
            if not wait_for_writer(out / name):
                raise


def weights_key(label: str) -> str:
    """Key of a model's digest.

    >>> weights_key("model"), weights_key("a")
    ('weights', 'weights_a')
    """
    return "weights" if label == "model" else f"weights_{label}"


def local_config(spec: str, trust_remote_code: bool = False) -> dict[str, Any] | None:
    """Identity that the configuration of a local model gives, its weights unread; None for other specs."""
    from repflow.models.identity.record import config_identity
    from repflow.models.load import find_source, read_config
    from repflow.spec.zoo import is_zoo

    if is_zoo(spec):  # its files are held against their own digests
        return None
    source = find_source(spec)
    return config_identity(read_config(source, trust_remote_code)) if source.form in ("folder", "config") else None


def config_bytes(spec: str) -> bytes | None:
    """The file with the configuration of a local model as it is now; None for other specs. Needs no torch."""
    form, colon, rest = spec.partition(":")
    file = Path(rest) if colon and form == "config" else Path(spec) / "config.json"
    try:
        return file.read_bytes()
    except OSError:
        return None


def check_reused(path: Path, spec: str, trust_remote_code: bool = False) -> None:
    """Refuse to read a finished run of a local model whose configuration was changed since, its weights unread.

    Raises:
        ConfigChangedError: names the key that differs.
    """
    from repflow.store import read_record
    from repflow.store.identity import check_models

    stored = read_record(path).provenance.get("identity", {}).get("model")
    now = local_config(spec, trust_remote_code) if stored else None
    if stored and now:
        check_models({"model": stored}, {"model": now}, path)
