"""Classifier: a network that names the class of an image, a stack of this package or an image model of transformers.

Pixels are numbers from 0 to 1 everywhere; the classifier puts them into the range, the shape and the size that its
network was trained on.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForImageClassification, PreTrainedModel
from transformers.utils import cached_file

from repflow.core.errors import InputError, refusing, teach
from repflow.models.devices import DEFAULT, require_dtype, resolve_device, resolve_dtype
from repflow.models.identity.record import config_identity
from repflow.models.load import (
    config_file,
    find_source,
    hub_reachable,
    trained_network,
    without_advice,
    without_progress,
)
from repflow.models.stack.config import StackConfig
from repflow.models.stack.network import StackForSequenceClassification
from repflow.models.stack.replica_classifier import class_form, class_logits, class_obstacle
from repflow.models.stack.replicas import ReplicaStack
from repflow.models.weights import digest
from repflow.models.weights.checkpoint import read_json, refusing_pickles
from repflow.tasks.pixels import PixelLayout

IMAGE_CLASS = "ForImageClassification"
PLAIN = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
"""How pixels are scaled for an image model that does not say it."""
MOST_SIDE = 4096
"""Pixels a side that images are enlarged to at most: a file may say anything."""


class Classifier:
    """A network that names the class of an image.

    Args:
        network: a stack's classifier with input channels, or an image classifier of transformers, in eval mode.
        name: short name.
        spec: what was requested.
        pixel_range: `image_mean` and `image_std` of an image model, and `size`, rows and columns, where its network
            does not say how large its images are.

    Attributes:
        layout: how its pixels stand in a sequence, where the network says it; row by row of pixels otherwise.
    """

    def __init__(
        self, network: PreTrainedModel, *, name: str = "", spec: str = "", pixel_range: dict[str, Any] | None = None
    ) -> None:
        self.network = network.eval()
        self.name = name or str(network.config.model_type)
        self.spec = spec or f"live:{self.name}"
        self.sequential = isinstance(network, StackForSequenceClassification)
        self.pixel_range = {**PLAIN, **(pixel_range or {})}
        if self.sequential and network.config.input_channels is None:
            remedy = "build the stack with input_channels"
            raise InputError(teach("a classifier of pixels", f"{self.name}, which reads token ids", remedy))
        own = getattr(network.config, "pixel_layout", None) or {"grey": not self.sequential and self.colours == 1}
        self.layout = PixelLayout.stored(own, self.name)

    @cached_property
    def _kernels(self) -> ReplicaStack | None:
        """The stack as kernels take it, whole blocks at once, where they do; None where it runs by its own code."""
        if not self.sequential or class_obstacle(self.network) is not None:
            return None
        stack = ReplicaStack([self.network]).to(self.device).eval()
        return stack if class_form(stack, stack.parameter("score.weight")) == "fused" else None

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.network.config.num_labels)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the network calls its classes; None where it has no names, which transformers writes as LABEL_0 ...

        A class called 10 is one with a name: folders of images stand in the order of letters, 0, 1, 10, 2.
        """
        names = getattr(self.network.config, "id2label", None) or {}
        numbered = all(str(name) == f"LABEL_{number}" for number, name in names.items())
        return None if numbered else tuple(str(names[number]) for number in sorted(names))

    @property
    def colours(self) -> int:
        """Channels of a picture that an image model of transformers reads."""
        return int(getattr(self.network.config, "num_channels", 3))

    @property
    def size(self) -> tuple[int, int] | None:
        """Rows and columns that pictures are brought to; None where an image model takes them as they are."""
        config = self.network.config
        part = getattr(config, "vision_config", config)  # of models that read texts too, such as CLIP
        return _pair(getattr(part, "image_size", None)) or self.pixel_range.get("size")

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.network.device

    def check(self, layout: PixelLayout, shape: tuple[int, int, int], classes: int) -> None:
        """Refuse images that the network cannot read, and labels that it does not know."""
        if classes != self.classes:
            got = f"{classes} classes of images and {self.classes} of {self.name}"
            raise InputError(teach("as many classes of images as the model has", got, "choose its own images"))
        if self.sequential and layout.channels(shape) != self.network.config.input_channels:
            expected = f"tokens of {self.network.config.input_channels} channels, as {self.name} reads them"
            remedy = "check --images, --grey and --patch"
            raise InputError(teach(expected, f"{layout.channels(shape)}", remedy))
        if not self.sequential and (self.colours not in (1, 3) or (self.colours == 1 < shape[2] and not layout.grey)):
            got = f"{shape[2]}, where {self.name} reads {self.colours}"
            raise InputError(teach("pictures of the model's channels, 1 or 3", got, "pass --grey for a model of 1"))
        most = getattr(self.network.config, "max_position_embeddings", None) if self.sequential else None
        if most is not None and layout.tokens(shape) > most:
            expected = f"at most {most} tokens, which have a position embedding"
            raise InputError(teach(expected, f"{layout.tokens(shape)}", "choose smaller images or larger patches"))
        if not self.sequential:
            self._try_picture(layout, shape)

    @torch.no_grad()
    def _try_picture(self, layout: PixelLayout, shape: tuple[int, int, int]) -> None:
        """Have a black picture read: a network may ask for something else than pictures, or for a size of its own."""
        black = torch.zeros(1, layout.tokens(shape), layout.channels(shape), device=self.device)
        remedy = "give images of its size, or a preprocessor_config.json that has one"
        with refusing("an image classifier that takes pixel_values", self.name, remedy):
            self.logits(black, layout, shape)

    def logits(self, tokens: Tensor, layout: PixelLayout, shape: tuple[int, int, int]) -> Tensor:
        """Logits (image, class) of pixels from 0 to 1 as sequences (image, token, channel)."""
        kind = self.network.dtype
        if self.sequential:
            low, high = self.network.config.input_range
            inputs = (low + (high - low) * tokens).to(kind)
            named: Tensor = (
                self.network(inputs).logits if self._kernels is None else class_logits(self._kernels, inputs)[0]
            )
            return named
        picture = _picture(tokens, layout, shape)
        mean, spread = (
            torch.tensor(self.pixel_range[name][: self.colours], device=tokens.device).view(1, -1, 1, 1)
            for name in ("image_mean", "image_std")
        )
        picture = (picture.expand(-1, self.colours, -1, -1) - mean) / spread
        if self.size is not None and tuple(picture.shape[2:]) != self.size:
            picture = functional.interpolate(picture, self.size, mode="bilinear", antialias=True)
        output: Tensor = self.network(pixel_values=picture.to(kind)).logits
        return output

    def digest(self) -> str:
        """Digest of every weight and stored buffer."""
        kept = {**dict(self.network.named_parameters()), **self.network.state_dict()}
        return digest.weights_digest(kept.items())

    def identity(self) -> dict[str, Any]:
        """What a run stores of the model beside its weights."""
        own = {**config_identity(self.network.config), "class": type(self.network).__qualname__}
        if self.sequential:
            return own
        # Beside the configuration's keys, which are compared: another preprocessor gives other numbers.
        pixels = self.pixel_range | {"size": None if self.size is None else list(self.size), "channels": self.colours}
        return own | {"config": own["config"] | {"pixels": pixels}}

    def facts(self) -> dict[str, Any]:
        """What a Result says about the model."""
        config = self.network.config
        kinds = [mixer["name"] for mixer in config.mixers] if isinstance(config, StackConfig) else []
        return {
            "name": self.name,
            "spec": self.spec,
            "type": str(config.model_type),
            "init": "trained",
            "ablate": [],
            "layers": int(getattr(config, "num_hidden_layers", 0) or 0),
            "layer_kinds": kinds,
            "width": int(getattr(config, "hidden_size", 0) or 0),
            "parameters": sum(parameter.numel() for parameter in self.network.parameters()),
            "revision": None,
            "training": None,
        }


def _picture(tokens: Tensor, layout: PixelLayout, shape: tuple[int, int, int]) -> Tensor:
    """Sequences → images (image, channel, row, column)."""
    (rows, columns), k = layout.grid(shape), layout.patch
    back = torch.empty_like(tokens)
    back[:, torch.from_numpy(np.asarray(layout.places(shape))).to(tokens.device)] = tokens
    parts = back.view(len(tokens), rows, columns, k, k, -1).permute(0, 5, 1, 3, 2, 4)
    return parts.reshape(len(tokens), -1, rows * k, columns * k)


def classifies(spec: str) -> bool:
    """Whether a model's configuration says that it names the class of an image."""
    source = find_source(spec)
    if source.form == "gguf":
        return False
    data = read_json(config_file(source))
    stack = data.get("model_type") == StackConfig.model_type and data.get("task") == "classification"
    return stack or any(str(name).endswith(IMAGE_CLASS) for name in data.get("architectures") or ())


def load_classifier(spec: str, *, device: Any = None, dtype: Any = DEFAULT) -> Classifier:
    """Load a classifier by the spec of its folder or hub id."""
    source = find_source(spec)
    place, kind = resolve_device(device), resolve_dtype(dtype)
    require_dtype(kind, place)
    name = source.name.rpartition("/")[2]
    if read_json(config_file(source)).get("model_type") == StackConfig.model_type:
        return Classifier(trained_network(source, kind, None, False).to(place), name=name, spec=spec)
    home: str | Path = source.path or source.name
    options = {
        "revision": source.revision or "main",
        "local_files_only": source.path is not None or not hub_reachable(),
    }
    refused = refusing("an image classifier", name, "check its files")
    with without_advice(), without_progress(), refusing_pickles(source.name), refused:
        config = AutoConfig.from_pretrained(home, **options)
        network, info = AutoModelForImageClassification.from_pretrained(
            home, config=config, dtype=kind, weights_only=True, output_loading_info=True, **options
        )
    if info["missing_keys"]:
        got = f"{name}, which lacks {len(info['missing_keys'])}"
        raise InputError(teach("a checkpoint with every parameter", got, "use a complete checkpoint"))
    return Classifier(network.to(place), name=name, spec=spec, pixel_range=_pixel_range(_preprocessor(home, options)))


def _preprocessor(home: str | Path, options: dict[str, Any]) -> Path | None:
    """A model's preprocessor_config.json, in its folder or by its hub id; None where it has none."""
    if isinstance(home, Path):
        file = home / "preprocessor_config.json"
        return file if file.is_file() else None
    try:
        cached = cached_file(home, "preprocessor_config.json", **options)
    except (OSError, ValueError):  # none there, or not in the cache of a machine without a network
        return None
    return None if cached is None else Path(cached)


def _pixel_range(file: Path | None) -> dict[str, Any]:
    """Mean and spread of pixels, and their size, as a preprocessor_config.json has them.

    Whole images are brought to the size that would be cropped: a replaced region at an edge stays in the picture.
    """
    if file is None:
        return {}
    data = read_json(file)
    _refuse_unread(data, file)
    cropped = _pair(data.get("crop_size")) if data.get("do_center_crop") else None
    size = cropped or (_pair(data.get("size")) if data.get("do_resize", True) else None)
    more: dict[str, Any] = {} if size is None else {"size": size}
    plain = "do_normalize" in data and not data["do_normalize"]
    twice = data.get("include_top", _kind(data).startswith("EfficientNet"))
    known = {name: _numbers(data, name, file) for name in PLAIN if not plain or (twice and name == "image_std")}
    mean, spread = known.get("image_mean", [0.0] * 3), known.get("image_std", [1.0] * 3)
    if twice and not plain:  # EfficientNet divides by the spread a second time, alone where it does not normalise
        spread = [value * value for value in spread]
    return {"image_mean": mean, "image_std": spread} | more


def _kind(data: dict[str, Any]) -> str:
    """Class of a preprocessor, in the words of new and of old files."""
    return str(data.get("image_processor_type") or data.get("feature_extractor_type") or "")


def _numbers(data: dict[str, Any], name: str, file: Path) -> list[float]:
    """Mean or spread of pixels; other numbers than the model was trained with would give wrong answers silently."""
    written = data.get(name)
    values = written if isinstance(written, list) else []
    finite = all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    if len(values) not in (1, 3) or not finite or (0 in values and "std" in name):
        expected = f"1 or 3 finite numbers in {name} of {file}, none of them 0 in image_std"
        remedy = "write what the model was trained with, or do_normalize false"
        raise InputError(teach(expected, "none" if written is None else f"{written}", remedy))
    return [float(value) for value in values]


def _refuse_unread(data: dict[str, Any], file: Path) -> None:
    """Refuse steps of a preprocessor that are not taken here: images would be read as the model was not trained."""
    steps = {
        "channels in the order blue, green, red (do_flip_channel_order)": bool(data.get("do_flip_channel_order")),
        "pixels that are not divided by 255 (do_rescale false)": data.get("do_rescale") is False,
        "pixels between -1 and 1 before they are normalised (rescale_offset)": bool(data.get("rescale_offset")),
        f"a rescale_factor of {data.get('rescale_factor')}": not _by_255(data.get("rescale_factor")),
    }
    if step := next((words for words, there in steps.items() if there), None):
        expected = "a preprocessor that divides pixels by 255, then takes image_mean off and divides by image_std"
        remedy = "read the model by code of your own (repflow.models.classifier.Classifier), or convert it"
        raise InputError(teach(expected, f"{step} in {file}", remedy))


def _by_255(factor: Any) -> bool:
    return factor is None or (isinstance(factor, int | float) and math.isclose(factor, 1 / 255, rel_tol=1e-6))


def _pair(size: Any) -> tuple[int, int] | None:
    """Rows and columns, in whichever of its forms transformers gives them; None where it gives none.

    >>> [_pair(size) for size in (8, [8, 6], {"height": 8, "width": 6}, {"shortest_edge": 8}, None)]
    [(8, 8), (8, 6), (8, 6), (8, 8), None]
    """
    if isinstance(size, dict):
        edge = size.get("shortest_edge")
        size = [size.get("height", edge), size.get("width", edge)]
    pair = size if isinstance(size, list | tuple) else [size, size]
    whole = len(pair) == 2 and all(type(side) is int and 0 < side <= MOST_SIDE for side in pair)
    return (pair[0], pair[1]) if whole else None
