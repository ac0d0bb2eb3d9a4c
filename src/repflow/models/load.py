"""From a model spec to a Model.

| spec | meaning |
|---|---|
| zoo:NAME | a built-in model, see `repflow.spec.zoo` |
| a folder | local Hugging Face folder, or an original mamba_ssm one; no connection is made |
| NAME, ORG/NAME, either with @REVISION | hub repository; a folder of that name wins |
| config:FILE.json | architecture only, random weights |
| FILE.gguf | needs the extra `gguf` |
| a live PreTrainedModel | read through a copy that shares its tensors; the model itself stays as it is |
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from huggingface_hub.constants import ENDPOINT
from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils import cached_file, logging

from repflow.core.errors import InputError, MissingExtraError, UnsupportedModelError, nearest, refusing, teach, words_of
from repflow.core.seconds import timed
from repflow.models.devices import DEFAULT, require_dtype, resolve_device, resolve_dtype
from repflow.models.families import plain_config, refuse_encoder
from repflow.models.identity.live import moved_copy, recall, remember, shared_copy
from repflow.models.implementations import no_fetched_kernels, refuse_fetched_code
from repflow.models.pretrained import Model
from repflow.models.size import check_counts, check_sizes, check_weights_fit
from repflow.models.stack.network import auto_class
from repflow.models.tokenizer import gguf_tokenizer, hub_tokenizer, local_tokenizer, open_tokenizer
from repflow.models.transformers_own import config_class, is_displaced
from repflow.models.weights import mamba_ssm
from repflow.models.weights.checkpoint import (
    read_json,
    read_weights,
    refuse_integer_weights,
    refuse_pickled_objects,
    refusing_pickles,
    stored_weights,
)
from repflow.models.weights.construct import cast, device_words
from repflow.models.weights.gguf import check_gguf
from repflow.models.weights.initialise import count_weights, drawing_device, random_model
from repflow.spec.request import check_device_map, check_scan, check_seed
from repflow.spec.scheme import parse_scheme
from repflow.spec.zoo import checked_folder, is_zoo

CPU = torch.device("cpu")
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.\-]*(/[\w.\-]+)?$")


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        form: folder, hub, config or gguf.
        path: Folder or file, None for the hub.
        name: Hub id, or a short name of the path.
        revision: Hub revision.
    """

    form: str
    path: Path | None
    name: str
    revision: str | None = None


@contextmanager
def without_advice() -> Iterator[None]:
    """Hide transformers' advice while a model is loaded: which scan runs is recorded, and repflow has its own.

    REPFLOW_DEBUG=1 shows it.
    """
    before = logging.get_verbosity()
    if os.environ.get("REPFLOW_DEBUG") != "1":
        logging.set_verbosity(max(before, logging.ERROR))
    try:
        yield
    finally:
        logging.set_verbosity(before)


@timed("load")
@without_advice()
def load(
    spec: Any,
    *,
    init: str = "trained",
    tokenizer: Any = None,
    dtype: torch.dtype | str = DEFAULT,
    device: str | torch.device | None = None,
    device_map: str | None = None,
    trust_remote_code: bool = False,
    seed: int = 0,
    scan: str = "auto",
) -> Model:
    """Load a model and verify that its states can be read.

    Args:
        spec: `zoo:NAME`, folder, hub id with optional `@revision`, `config:FILE.json`, `.gguf` file, or a live model.
        init: `trained`, or random weights by a scheme: `default`, `gaussian[:std]`, `xavier[:gain]`, `he[:gain]`, with
            switches such as `+residual` (see `repflow.spec.scheme`).
        tokenizer: Tokenizer, or folder, file or hub id of one; by default the model's own, if it has any.
        dtype: float32 unless given; a live model keeps its own unless given.
        device: First GPU if there is one, else the CPU; a live model stays where it is unless given.
        device_map: `auto` spreads the model over the devices (extra `accelerate`).
        trust_remote_code: Run Python code that comes with the model.
        seed: Seed of random weights. On the CPU it gives the same ones everywhere; a GPU draws its own.
        scan: Form of the scan in state-space layers: `auto` (the fastest that can run), `fast` (repflow's own, also
            where mamba_ssm is installed), or `reference` (transformers').

    Returns:
        The model, in eval mode.

    Raises:
        InputError: The spec or an option is wrong, or the checkpoint is refused.
        UnsupportedModelError: A self-check failed.
    """
    scheme = parse_scheme(init)
    check_scan(scan)
    if not isinstance(spec, str | Path | PreTrainedModel):
        raise _no_model(spec)
    if isinstance(spec, PreTrainedModel):
        return _load_live(spec, init, tokenizer, dtype, device, seed, scan)
    source = find_source(spec)
    if source.form == "config" and scheme.name == "trained":
        init = "default"
    check_seed(seed)
    place, kind = resolve_device(device), resolve_dtype(dtype)
    require_dtype(kind, place)
    check_device_map(device_map)
    if device_map is not None:
        _need("accelerate", "accelerate", f"device_map={device_map!r}")
    drawn_on = None
    with no_fetched_kernels():
        if init == "trained":
            network = trained_network(source, kind, device_map, trust_remote_code)
        else:
            config = read_config(source, trust_remote_code)
            network, drawn_on = _random(config, init, seed, place if device_map is None else CPU, trust_remote_code)
            network = cast(network, kind)
        network = _place(network, place, device_map)
        own = _tokenizer(source, tokenizer, trust_remote_code)
        name = source.name.rpartition("/")[2]
        facts: dict[str, Any] = {"init": init, "drawn_on": drawn_on, "revision": source.revision}
        with runnable(name):
            return Model(network, spec=str(spec), name=name, tokenizer=own, scan=scan, **facts)


def runnable(name: str) -> AbstractContextManager[None]:
    """Context in which whatever a network from a file raises means that it cannot be run."""
    remedy = "check its config.json, or load it with transformers to see more"
    return refusing("a model that runs on token ids", name, remedy, UnsupportedModelError)


def _random(
    config: Any, init: str, seed: int, device: torch.device, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, str]:
    """Random weights for a device, and who drew them: a GPU where it can, else the CPU."""
    place = drawing_device(config, device, trust_remote_code)
    if place == CPU and not trust_remote_code and (count := count_weights(config)) is not None:
        check_weights_fit(count, torch.float32, place, str(config.model_type))
    options: dict[str, Any] = {"seed": seed, "trust_remote_code": trust_remote_code}
    return random_model(config, init, device=None if place == CPU else place, **options), device_words(place)


def _load_live(
    network: PreTrainedModel, init: str, tokenizer: Any, dtype: torch.dtype | str, device: Any, seed: int, scan: str
) -> Model:
    """Wrap a live model, or build the random twin of its configuration."""
    refuse_encoder(network.config)
    check_seed(seed)
    kind = network.dtype if dtype == DEFAULT else resolve_dtype(dtype)
    place = network.device if device is None else resolve_device(device)
    moved, drawn_on = (kind, place) != (network.dtype, network.device), None
    if moved or init != "trained":
        require_dtype(kind, place)
    elif (known := recall(network, scan)) is not None:
        known.tokenizer, known.findings = open_tokenizer(tokenizer), list(known.findings)
        return known
    live = network
    if init != "trained":
        network, drawn_on = _random(plain_config(network), init, seed, place)
        network = (network if network.dtype == kind else cast(network, kind)).to(place)
    else:
        network = moved_copy(network, place, kind) if moved else shared_copy(network)
    origin = str(getattr(network.config, "name_or_path", "") or "").rstrip("/")
    name = origin.rpartition("/")[2] or str(network.config.model_type)
    facts: dict[str, Any] = {"init": init, "drawn_on": drawn_on, "tokenizer": open_tokenizer(tokenizer), "scan": scan}
    model = Model(network, spec=f"live:{name}", name=name, **facts)
    if not moved and init == "trained":
        remember(live, model)
    return model


def twin(model: Model, init: str = "default", *, seed: int = 0) -> Model:
    """Random twin of a loaded model: same configuration, dtype, device and tokenizer, weights by a scheme and seed."""
    if parse_scheme(init).name == "trained":
        raise InputError(teach("a random scheme for a twin", repr(init), "use default, gaussian, xavier or he"))
    other = _load_live(model.network, init, None, DEFAULT, None, seed, model.scans.setting)
    other.spec, other.name, other.revision, other.tokenizer = model.spec, model.name, model.revision, model.tokenizer
    return other


def find_source(spec: str | Path) -> Source:
    """Recognise the form of a spec; a local path that exists wins over the hub."""
    text = str(spec)
    if is_zoo(text):
        folder = checked_folder(text)
        return Source("folder", folder, folder.name)
    if text.startswith("config:"):
        path = Path(text.removeprefix("config:")).expanduser()
        if not path.is_file():
            raise _unknown(text, path)
        return Source("config", path, path.stem)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return Source("folder", path, path.resolve().name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise _unknown(text, path)
        return Source("gguf", path, path.stem)
    name, at, revision = text.partition("@")
    if at and Path(name).expanduser().is_dir():
        remedy = f"leave @{revision} out, or name the folder of that revision"
        raise InputError(teach("a folder without a revision: files have one state", repr(text), remedy))
    if isinstance(spec, Path) or not HUB_ID.match(name) or path.is_file():
        raise _unknown(text, path)
    return Source("hub", None, name, revision or None)


def _no_model(value: Any) -> InputError:
    """What to do with an object that is not a model of transformers."""
    expected = "a model spec, or a live model of transformers (PreTrainedModel)"
    got = f"{type(value).__module__}.{type(value).__qualname__}"
    remedy = "pass zoo:NAME, a folder or a hub id"
    if isinstance(value, torch.nn.Module):
        inner = next((m for m in value.modules() if isinstance(m, PreTrainedModel)), None)
        remedy = "wrap the layers as a repflow.models.StackConfig, or as a PreTrainedModel of your own"
        if inner is not None:
            remedy = f"pass the {type(inner).__name__} inside it"
            return InputError(teach(expected, f"a {got} around one", remedy))
        got = f"a live {got}, whose blocks and token ids repflow cannot find"
    return InputError(teach(expected, got, remedy))


WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".safetensors", ".h5", ".msgpack", ".onnx", ".npz")
"""Endings of files that hold weights and nothing that says how to run them."""


def _lone_file(spec: str, path: Path) -> InputError:
    """What to do with a file that is there but is not a model."""
    expected = "zoo:NAME, a model folder, hub id, config:FILE.json or FILE.gguf"
    if path.suffix == ".json":
        return InputError(teach(expected, f"{spec!r}, a JSON file", f"pass config:{spec} for its architecture"))
    if path.suffix in WEIGHTS:
        home = path.parent.resolve()
        remedy = "put it beside its config.json and pass that folder"
        if (path.parent / "config.json").is_file():
            remedy = f"pass its folder, {home}"
        return InputError(teach(expected, f"{spec!r}, a file of weights without a configuration", remedy))
    return InputError(teach(expected, f"{spec!r}, a file that is none of these", "pass the folder of the model"))


def _unknown(spec: str, path: Path) -> InputError:
    if path.is_file():
        return _lone_file(spec, path)
    folder = path.parent if path.parent.is_dir() else Path()
    siblings = [entry.name for entry in folder.iterdir() if entry.is_dir() or entry.suffix in (".json", ".gguf")]
    hint = nearest(path.name, siblings[:200]) if siblings else "check the path"
    expected = "zoo:NAME, a model folder, hub id, config:FILE.json or FILE.gguf"
    return InputError(teach(expected, f"{spec!r}, which does not exist", hint))


def read_config(source: Source, trust_remote_code: bool) -> Any:
    """Configuration of a model, remote code refused unless allowed."""
    if source.form == "gguf":
        _need("gguf", "gguf", "a .gguf file")
        assert source.path is not None
        check_gguf(source.path)
        with refusing_pickles(source.path.name):
            place, options = source.path.parent, {"gguf_file": source.path.name, "local_files_only": True}
            config = AutoConfig.from_pretrained(place, **options)
            kind = config.model_type
            config = config_class(kind).from_pretrained(place, **options) if is_displaced(kind) else config
        check_sizes(config, source.name)
        refuse_encoder(config)
        return config
    file = config_file(source)
    data = read_json(file)
    check_counts(data, source.name)
    sound = refusing(f"a valid {file.name}", f"that of {source.name}", "correct it, or download it again")
    if mamba_ssm.is_original(data):
        with sound:
            return mamba_ssm.read_config(data)
    _check_config(data, source, trust_remote_code)
    options = {"revision": source.revision or "main", "local_files_only": source.form != "hub" or not hub_reachable()}
    with sound:
        home = source.path or source.name
        if is_displaced(data.get("model_type")):
            config = config_class(data["model_type"]).from_pretrained(home, **options)
        else:
            config = AutoConfig.from_pretrained(home, trust_remote_code=trust_remote_code, **options)
        check_sizes(config, source.name)
    refuse_encoder(config)
    return config


def config_file(source: Source) -> Path:
    """Find a model's configuration, downloading it from the hub if it must."""
    if source.form == "config":
        assert source.path is not None
        return source.path
    if source.path is not None:
        file = source.path / "config.json"
        if not file.is_file():
            raise InputError(teach("a folder with a config.json", *_found_instead(source.path)))
        return file
    return _download(source, "config.json")


def _found_instead(folder: Path) -> tuple[str, str]:
    """What a folder without a config.json is, and what to do about it."""
    inner = sorted(file.parent for file in folder.glob("*/config.json"))
    if not inner:
        return str(folder), "give a Hugging Face model folder"
    return f"{folder}, which holds {len(inner)} such folder{'s' * (len(inner) > 1)}", f"name one, such as {inner[0]}"


def _download(source: Source, name: str) -> Path:
    try:
        offline = not hub_reachable()
        file = cached_file(source.name, name, revision=source.revision or "main", local_files_only=offline)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        wanted = source.name if source.revision is None else f"{source.name}@{source.revision}"
        raise InputError(
            teach(
                f"a folder {source.name!r}, or a hub repository {wanted!r} with {name}",
                f"no such folder here, and from the hub: {first}",
                "check the path or name, or the network",
            )
        ) from error
    if file is None:
        raise InputError(teach(f"{name} in {source.name}", "a repository without it", "check the name"))
    return Path(file)


@functools.cache
def hub_reachable() -> bool:
    """Whether the hub's name resolves; else only the cache is used, instead of 23 s of attempts to download.

    Behind a proxy names are resolved elsewhere, so it is taken to be reachable.
    """
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def _check_config(data: dict[str, Any], source: Source, trust_remote_code: bool) -> None:
    """Refuse what transformers has no code for, and code that comes with the model unless it is trusted."""
    refuse_fetched_code(data, source.name)
    kind = data.get("model_type")
    if kind is not None and not isinstance(kind, str):
        raise InputError(teach("a model_type that is a name", f"{kind!r:.80}", "check the config.json"))
    if "quantization_config" in data:
        _check_quantization(data["quantization_config"])
    if kind in CONFIG_MAPPING or (trust_remote_code and "auto_map" in data):
        return
    if "auto_map" in data:
        remedy = "pass --trust-remote-code after reading it"
        raise InputError(
            teach("a model that transformers has code for", f"{source.name}, which brings its own Python code", remedy)
        )
    hint = nearest(str(kind), CONFIG_MAPPING.keys()) if kind else "it has no model_type"
    raise InputError(teach("a model_type that transformers knows", repr(kind), hint if len(hint) < 200 else "check it"))


def _check_quantization(packing: Any) -> None:
    """Refuse a packing of weights that transformers cannot undo: it would read the packed numbers as weights."""
    method = packing.get("quant_method") if isinstance(packing, dict) else None
    known = sorted(AUTO_QUANTIZATION_CONFIG_MAPPING)
    if packing is None or method in known or method == "bitsandbytes":  # known by its bits: bitsandbytes_4bit, ...
        return
    got = f"quantization_config = {packing!r:.80}"
    remedy = "use the unquantised checkpoint, or take the key out if the weights are plain"
    raise InputError(teach(f"a quant_method that transformers knows ({', '.join(known[:6])}, ...)", got, remedy))


def trained_network(
    source: Source, dtype: torch.dtype, device_map: str | None, trust_remote_code: bool
) -> PreTrainedModel:
    """Read trained weights; parameters that the checkpoint lacks are an error, never random numbers."""
    if source.form != "gguf" and mamba_ssm.is_original(data := read_json(config_file(source))):
        check_counts(data, source.name)
        with refusing_pickles(source.name):
            return mamba_ssm.convert(data, read_weights(_original_folder(source))).to(dtype)
    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code, "weights_only": True}
    if device_map is not None:
        options["device_map"] = device_map
    if source.form == "gguf":
        _need("gguf", "gguf", "a .gguf file")
        assert source.path is not None
        options |= {"gguf_file": source.path.name, "local_files_only": True}
        if is_displaced((config := read_config(source, trust_remote_code)).model_type):
            options["config"] = config
        return _from_pretrained(source.path.parent, options, source.name)
    options["config"] = read_config(source, trust_remote_code)
    if source.path is not None:
        refuse_pickled_objects(source.path)
        plain = getattr(options["config"], "quantization_config", None) is None
        if plain and device_map is None:
            check_weights_fit(stored_weights(source.path), dtype, CPU, source.name)
        network = _from_pretrained(source.path, options | {"local_files_only": True}, source.name)
        if plain:
            refuse_integer_weights(source.path, network)
        return network
    options |= {"revision": source.revision or "main", "local_files_only": not hub_reachable()}
    return _from_pretrained(source.name, options, source.name)


def _original_folder(source: Source) -> Path:
    if source.path is not None:
        return source.path
    return _download(source, "pytorch_model.bin").parent


def _from_pretrained(place: str | Path, options: dict[str, Any], name: str) -> PreTrainedModel:
    with refusing_pickles(name), _matching(name), without_progress():
        network, info = auto_class(options.get("config")).from_pretrained(place, output_loading_info=True, **options)
    missing = set(info["missing_keys"])
    head = network.get_output_embeddings()
    names = {
        key
        for key, value in network.named_parameters()
        if head is not None and any(value is p for p in head.parameters())
    }
    if missing and missing <= names:
        return network.base_model  # a checkpoint of the base model: its states stand, there is no head to invent
    if missing:
        got = f"{name}, which lacks {len(missing)} of them ({', '.join(sorted(missing)[:3])}, ...)"
        raise InputError(teach("a checkpoint with every parameter", got, "use a complete checkpoint"))
    return network


@contextmanager
def _matching(name: str) -> Iterator[None]:
    """Reword transformers' errors about shapes, which it prints elsewhere, and about missing packages."""
    try:
        yield
    except ImportError as error:
        remedy = "install that package, or use the unquantised checkpoint"
        raise InputError(teach("packages for this checkpoint", f"{name}: {words_of(error)}", remedy)) from error
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        expected, remedy = "weights of the shapes that config.json gives", "check that the two belong together"
        raise InputError(teach(expected, f"others in {name}", remedy)) from error


@contextmanager
def without_progress() -> Iterator[None]:
    """Hide transformers' progress bar over the weights; downloads keep theirs."""
    visible = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if visible:
            logging.enable_progress_bar()


def _place(network: PreTrainedModel, device: torch.device, device_map: str | None) -> PreTrainedModel:
    if device_map is None:
        return network.to(device)
    if getattr(network, "hf_device_map", None) is None and device_map == "auto":
        from accelerate import dispatch_model, infer_auto_device_map

        spread = infer_auto_device_map(network, no_split_module_classes=network._no_split_modules)
        return dispatch_model(network, spread)
    return network


def _tokenizer(source: Source, tokenizer: Any, trust_remote_code: bool) -> Any:
    if tokenizer is not None:
        offline = isinstance(tokenizer, str) and not Path(tokenizer).exists() and not hub_reachable()
        return open_tokenizer(tokenizer, trust_remote_code=trust_remote_code, offline=offline)
    if source.form == "hub":
        offline = not hub_reachable()
        return hub_tokenizer(source.name, source.revision, trust_remote_code=trust_remote_code, offline=offline)
    if source.form == "gguf" and source.path is not None:
        return gguf_tokenizer(source.path)
    if source.form == "folder" and source.path is not None:
        return local_tokenizer(source.path, trust_remote_code=trust_remote_code)
    return None


def _need(module: str, extra: str, what: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(f"{what} needs {module}, which is not installed; pip install 'repflow[{extra}]'")
