"""Train one model of the zoo: seeded, in one piece, equal steps for all.

Weights are kept in float32, products run in bfloat16 on a GPU (float32 on a CPU). AdamW without decay on embeddings,
norms, biases and the recurrence's own parameters; linear warm-up, then a cosine down to a tenth; gradients clipped.

    loss = Σ wₜ · cross entropyₜ / Σ wₜ        weights: see `tools.zoo.kvpr`

The flow of representations and the retrieval of held-out prompts are measured on the way and kept; weights are not.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.zoo.batches import BatchConfig, chunks, window_counts
from tools.zoo.data import ZooData, open_data
from tools.zoo.models import build, parameter_count

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MEASURED = (0.0, 0.01, 0.1, 1.0)
"""Parts of the training after which the flow is measured."""
LOOKS = 10
"""Times that retrieval is looked at on the way."""
WARM = 3
"""Steps before a CUDA graph is recorded."""
PARTS = ("loss", "prose_loss", "answer_loss", "gradient_norm")


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
        name: model of the zoo.
        data: folder that `prepare` wrote.
        out: folder of the model, which is written at the end.
        size: shared sizes, see `tools.zoo.models.SIZES`.
        steps: optimizer steps.
        seed: seed of weights and batches.
        rate: greatest learning rate.
        warmup: steps up to it.
        final: last learning rate by the greatest.
        decay: weight decay of matrices.
        clip: greatest norm of the gradient.
        seconds: stop and save after so many; None for no bound.
        device: cpu or cuda; None takes the GPU where there is one.
        graph: record a step as a CUDA graph and replay it.
        measure: measure the flow at 0, 1, 10 and 100 % of the steps.
        batches: what the batches hold; their seed is this one's.
    """

    name: str
    data: str
    out: str
    size: str = "4m"
    steps: int = 8000
    seed: int = 0
    rate: float = 2e-3
    warmup: int = 400
    final: float = 0.1
    decay: float = 0.1
    clip: float = 1.0
    seconds: float | None = None
    device: str | None = None
    graph: bool = True
    measure: bool = True
    batches: BatchConfig = field(default_factory=BatchConfig)


def learning_rate(config: TrainConfig, step: int) -> float:
    """Rate at a step from 0: linear up to the greatest, then a cosine.

    >>> config = TrainConfig("mamba", "", "", steps=100, warmup=10, rate=1.0)
    >>> [round(learning_rate(config, step), 3) for step in (0, 9, 55, 99)]
    [0.1, 1.0, 0.55, 0.1]
    """
    if step < config.warmup:
        return config.rate * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.rate * (config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def weighted_loss(logits: Tensor, ids: Tensor, weights: Tensor, prose: int) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, and without gradient the mean over prose (the first rows) and over answers.

    Args:
        logits: (batch, token, vocabulary).
        ids: the tokens (batch, token).
        weights: weight of each token as the one to be predicted (batch, token).
        prose: rows of prose.
    """
    import torch
    from torch.nn.functional import cross_entropy

    target = torch.roll(ids, -1, 1)
    weight = torch.roll(weights, -1, 1)
    weight[:, -1] = 0  # nothing follows the last token
    each = cross_entropy(logits.flatten(0, 1).float(), target.flatten().long(), reduction="none").view_as(weight)
    loss = (each * weight).sum() / weight.sum().clamp(min=1)
    with torch.no_grad():
        told = weight > 1
        answers = (each * told).sum() / told.sum().clamp(min=1)
        text = (each[:prose] * weight[:prose]).sum() / weight[:prose].sum().clamp(min=1)
    return loss, text, answers


def make_optimizer(network: Any, config: TrainConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW with decay on matrices and convolutions alone; ready for a CUDA graph on a GPU."""
    import torch

    from repflow.models.weights.initialise import parameter_groups

    kinds = parameter_groups(network)
    named = list(network.named_parameters())
    decayed = [p for name, p in named if kinds[name] in ("matrices", "convolutions")]
    plain = [p for name, p in named if kinds[name] not in ("matrices", "convolutions")]
    groups = [{"params": decayed, "weight_decay": config.decay}, {"params": plain, "weight_decay": 0.0}]
    on_gpu = device.type == "cuda"
    rate: Any = torch.tensor(config.rate, device=device) if on_gpu else config.rate
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=on_gpu, capturable=on_gpu)


class Trainer:
    """One training step on fixed buffers, eager or as a CUDA graph.

    Attributes:
        parts: loss, its mean over prose and over answers, and the gradient's norm, of the last step (4,).
        recorded: whether steps are replayed from a graph.
    """

    def __init__(self, network: Any, config: TrainConfig, window: int, device: torch.device) -> None:
        import torch

        self.network, self.config, self.device = network, config, device
        self.optimizer = make_optimizer(network, config, device)
        size = (config.batches.batch, window)
        self._ids = torch.zeros(size, dtype=torch.int64, device=device)
        self._weights = torch.zeros(size, dtype=torch.float32, device=device)
        self._prose = round(config.batches.batch * config.batches.prose)  # rows of prose come first
        self.parts: Tensor = torch.zeros(len(PARTS), device=device)
        self._graph: Any = None
        self._tried = False

    @property
    def recorded(self) -> bool:
        """Whether steps are replayed from a graph."""
        return self._graph is not None

    def step(self, number: int, ids: Tensor, weights: Tensor) -> Tensor:
        """Train on one batch."""
        self._ids.copy_(ids)
        self._weights.copy_(weights)
        rate = learning_rate(self.config, number)
        for group in self.optimizer.param_groups:
            if self.device.type == "cuda":
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self._graph is not None:
            self._graph.replay()
        elif self._tried or not self.config.graph or self.device.type != "cuda":
            self._run()
        else:
            self._warm()
            if number + 1 >= WARM:
                self._record()
        return self.parts

    def _warm(self) -> None:
        """A step on a stream of its own, as what runs before a recording has to."""
        import torch

        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._run()
        torch.cuda.current_stream().wait_stream(side)

    def _run(self) -> None:
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.network(input_ids=self._ids, use_cache=False).logits
        loss, prose, answers = weighted_loss(logits, self._ids, self._weights, self._prose)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)
        self.optimizer.step()
        self.parts.copy_(torch.stack([loss.detach(), prose, answers, norm.detach()]))

    def _record(self) -> None:
        """Record the step; recording does not run it. A model that cannot be recorded goes on step by step."""
        import torch

        self._tried = True
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                self._run()
        except Exception as error:  # noqa: BLE001 - whatever stands in the way, training can go on without
            torch.cuda.synchronize()
            self.optimizer.zero_grad(set_to_none=True)
            print(f"no CUDA graph: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
            return
        self._graph = graph


def train(config: TrainConfig, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train a model, write its folder, and return what training.json says."""
    from repflow.models.devices import resolve_device
    from repflow.store.disk import make_folder
    from tools.zoo.save import save_model

    data = open_data(config.data)
    resolve_device(config.device)
    make_folder(Path(config.out))  # a place that cannot be written to is refused now, not once all is trained
    network = build(config.name, config.size, data.vocabulary, data.window, config.seed)
    record = train_network(network, config, data, say)
    save_model(network, Path(config.out), record)
    say(f"{config.name}: {record['steps']} steps in {record['seconds']:.1f} s, written to {config.out}")
    return record


def train_network(
    network: Any, config: TrainConfig, data: ZooData, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train a network where it is moved to, and return the record of the training."""
    from repflow.models.devices import resolve_device

    device = resolve_device(config.device)
    network.to(device)
    record = _begin(config, data, network, device)
    say(f"{config.name}: {record['parameters']:,} parameters, {config.steps} steps on {record['device']}")
    began = time.perf_counter()
    _loop(config, data, network, device, record, say)
    record["seconds"] = time.perf_counter() - began
    record["tokens"] = record["steps"] * config.batches.batch * data.window
    return record


def _begin(config: TrainConfig, data: ZooData, network: Any, device: torch.device) -> dict[str, Any]:
    from repflow.studies.engine.provenance import machine

    asked = asdict(config) | {"out": "", "data": Path(config.data).name}
    return {
        "name": config.name,
        "config": asked,
        "parameters": parameter_count(network),
        "data": {key: data.facts_of[key] for key in ("digests", "licences", "seeds", "window", "prose_tokens")},
        "vocabulary": data.vocabulary,
        "windows": window_counts(data, config.batches),
        **machine(str(device)),
        "steps": 0,
        "stopped_early": False,
        "curve": [],
        "retrieval": [],
        "flow": [],
    }


def _loop(
    config: TrainConfig, data: ZooData, network: Any, device: torch.device, record: dict[str, Any], say: Any
) -> None:
    """All steps, with what is measured on the way."""
    from tools.zoo.fast import fast_forward
    from tools.zoo.watch import Watch

    watch = Watch(config, data, network, device, record, say)
    trainer = Trainer(network.train(), config, data.window, device)
    batches = _batches(config, data, device)
    watch.look(0)
    done = 0
    while done < config.steps:
        stop = watch.next_stop(done)
        with fast_forward(network) as names:
            record["fast_modules"] = len(names)
            for number in range(done, stop):
                watch.keep(number, trainer.step(number, *next(batches)))
                if watch.late(number):
                    record["stopped_early"] = True
                    stop = number + 1
                    break
        watch.report(done, stop)
        done, record["steps"], record["graph"] = stop, stop, trainer.recorded
        if record["stopped_early"]:
            break
        watch.look(done)
    batches.close()
    if record["stopped_early"]:
        watch.look(done, last=True)


def _batches(config: TrainConfig, data: ZooData, device: torch.device) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Batches on the device, moved many steps at a time."""
    from dataclasses import replace

    import torch

    own = replace(config.batches, seed=config.seed)
    made = chunks(data, own, config.steps)
    try:
        for chunk in made:
            ids = torch.from_numpy(chunk.ids.astype("int32")).to(device)
            weights = torch.from_numpy(chunk.weights).to(device)
            yield from zip(ids, weights, strict=True)
    finally:
        made.close()


def read_record(folder: str | Path) -> dict[str, Any]:
    """What training.json of a model's folder says."""
    made: dict[str, Any] = json.loads((Path(folder) / "training.json").read_text(encoding="utf-8"))
    return made
