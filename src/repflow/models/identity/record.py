"""Identity of a model, beside the digest of its weights: configuration, code, who drew its weights, and its function.

`repflow.store.identity` compares what is stored with what is there now.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.models.identity.fingerprint import fingerprint

if TYPE_CHECKING:
    from repflow.models.pretrained import Model

WITHOUT = frozenset(
    [
        "_name_or_path",
        "name_or_path",
        "transformers_version",
        "architectures",
        "auto_map",
        "dtype",
        "torch_dtype",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "_attn_implementation_autoset",
        "experts_implementation",
        "_experts_implementation",
        "_experts_implementation_internal",
        "use_cache",
        "output_hidden_states",
        "output_attentions",
        "return_dict",
        "gradient_checkpointing",
        "id2label",
        "label2id",
        "task_specific_params",
        "finetuning_task",
        "problem_type",
        "use_mambapy",
        "use_mamba_kernels",
        "rescale_every",
        "max_inference_chunksize",
    ]
)
"""Keys of a configuration that are not part of what a model computes: names, versions, how it is run (compared as the
dtype of the weights and by the fingerprint), and what repflow sets itself (`repflow.models.families`)."""
OWN_PACKAGES = ("transformers", "repflow")


def model_identity(model: Model) -> dict[str, Any]:
    """What a run stores of a model's identity, as plain JSON values; three short forward passes."""
    return {
        **config_identity(model.network.config),
        "code": _code(type(model.network)),
        "drawn_on": model.drawn_on,
        "function": fingerprint(model),
    }


def config_identity(config: Any) -> dict[str, Any]:
    """The part of the identity that a configuration alone gives."""
    return {"config": normalised(config), "transformers": metadata.version("transformers")}


def normalised(config: Any) -> dict[str, Any]:
    """A configuration as JSON gives it back, defaults written out, without keys that do not change the function.

    >>> from transformers import GPT2Config
    >>> found = normalised(GPT2Config(n_layer=3))
    >>> found["n_layer"], found["activation_function"], "use_cache" in found
    (3, 'gelu_new', False)
    """
    content: dict[str, Any] = _plain(json.loads(config.to_json_string(use_diff=False)))
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value) if key not in WITHOUT}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _code(kind: type) -> dict[str, Any]:
    """The class that computes; of code that comes with a model or a notebook also a digest of its file."""
    entry: dict[str, Any] = {"class": f"{kind.__module__}.{kind.__qualname__}"}
    if kind.__module__.partition(".")[0] in OWN_PACKAGES:
        return entry
    # The name of a cached module holds the revision of its repository, which may change without a change of code.
    entry["class"] = kind.__qualname__
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:
        file = None
    if file is not None and Path(file).is_file():
        entry["source"] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return entry
