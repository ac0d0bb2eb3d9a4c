"""Groups of models of one shape: trained side by side, then each is tested and looked into."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from repflow.models.stack.config import StackConfig
from repflow.models.stack.network import StackForCausalLM
from repflow.models.stack.replicas import ReplicaStack, shape_facts
from repflow.studies.recall.config import Cell, RecallConfig, parse_row
from repflow.tasks.recall import RecallSetting, recall_prompts, recall_rows
from repflow.training import OptimiserConfig, Schedule, TrainingConfig, train
from repflow.training.batch import step_seed
from repflow.training.recall import RecallBatches
from repflow.training.replicas import ReplicaBatches, ReplicaLoss

if TYPE_CHECKING:
    from repflow.training import TrainingRun

POINTS = 100
"""Points of a stored curve of loss or accuracy."""
HALF_WINDOW = 90
"""Steps over which accuracy is averaged, where the step is sought at which it reaches a half."""
FALLING = 0.01
"""Share by which the loss of the last tenth lies below that of the tenth before, where it is still falling."""
TEST_SEED = 1_000_003
"""Seed of the test rows: the same for all models, and no seed of training rows."""


def build(cell: Cell, config: RecallConfig) -> StackForCausalLM:
    """The stack of a cell at its initialisation; the same weights on every machine."""
    mixer = dict(parse_row(cell.row).mixer)
    if cell.init == "published":
        mixer["dt_bias"] = "zero"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell.seed)
        shape: dict[str, Any] = {
            "num_hidden_layers": cell.layers,
            "hidden_size": cell.width,
            "vocab_size": config.vocabulary,
        }
        return StackForCausalLM(StackConfig(mixers=mixer, tie_word_embeddings=not config.untied, **shape))


def state_bytes(network: StackForCausalLM, tokens: int) -> int:
    """Bytes in float32 of what all layers keep of the tokens: their states, or keys and values of the tokens."""
    blocks: Any = network.model.blocks
    sizes = [block.mixer.state_size for block in blocks]
    return 4 * sum(2 * tokens * network.config.hidden_size if size is None else int(size) for size in sizes)


def groups(config: RecallConfig) -> list[list[int]]:
    """Numbers of the cells that are trained together: equal shapes, up to `together` of them."""
    shapes: list[Any] = []
    together: list[list[int]] = []
    for number, cell in enumerate(config.grid()):
        shape = shape_facts(build(cell, config))
        for place, group in enumerate(together):
            if shapes[place] == shape and len(group) < config.together:
                group.append(number)
                break
        else:
            shapes.append(shape)
            together.append([number])
    return together


@dataclass
class Trained:
    """A group after its training.

    Attributes:
        run: what the training gave.
        networks: the models, on their device.
        device: theirs.
    """

    run: TrainingRun
    networks: Sequence[StackForCausalLM]
    device: torch.device


def train_group(
    cells: Sequence[Cell],
    config: RecallConfig,
    folder: Path | None,
    device: torch.device,
    *,
    seconds: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Trained:
    """Train the models of some cells side by side, or go on where an earlier call stopped."""
    whole = ReplicaStack([build(cell, config) for cell in cells], factors=[cell.rate for cell in cells])
    sources = {
        seed: RecallBatches(config.settings(), rows=config.batch, seed=seed, device=device)
        for seed in dict.fromkeys(cell.seed for cell in cells)
    }
    how = TrainingConfig(
        steps=config.steps,
        optimiser=OptimiserConfig(rate=1.0, decay=config.decay),
        schedule=Schedule("cosine", warmup=round(config.warmup * config.steps)),
        clip=config.clip or None,
        device=str(device),
        log_every=500,
        checkpoint_every=config.checkpoint,
        seconds=seconds,
    )
    source = ReplicaBatches([sources[cell.seed] for cell in cells])
    run = train(whole, source, how, loss=ReplicaLoss(), folder=folder, say=say)
    networks = [network.to(device).eval() for network in whole.put_back()]
    return Trained(run, networks, device)


def read_curves(run: TrainingRun, number: int) -> dict[str, np.ndarray]:
    """Curves of one model's training, the step at which accuracy reaches a half, whether its loss was still falling."""
    loss, accuracy = (run.history[f"{name} {number}"].astype(np.float64) for name in ("loss", "accuracy"))
    edges = np.linspace(0, len(loss), min(POINTS, len(loss)) + 1).round().astype(int)
    spans = list(itertools.pairwise(edges))
    bad = np.flatnonzero(~np.isfinite(loss))
    window = min(HALF_WINDOW, len(accuracy))
    smooth = np.convolve(accuracy, np.ones(window) / window, "valid")
    reached = np.flatnonzero(smooth >= 0.5)
    tenth = max(1, len(loss) // 10)
    before, last = loss[-2 * tenth : -tenth], loss[-tenth:]
    drop = (before.mean() - last.mean()) / before.mean() if len(before) and before.mean() > 0 else np.nan
    return {
        "steps": edges[1:].astype(np.int64),
        "loss": np.array([loss[a:b].mean() for a, b in spans]),
        "train_accuracy": np.array([accuracy[a:b].mean() for a, b in spans]),
        "half_step": np.array(reached[0] + window if len(reached) else np.nan),
        "loss_drop": np.array(drop),
        "diverged_at": np.array(bad[0] + 1 if len(bad) else np.nan),
    }


def distance_edges(length: int) -> list[int]:
    """Bounds of the bins of distances: 1, 2, 4, ... up to what a row can have.

    >>> distance_edges(12)
    [1, 2, 4, 8, 16]
    """
    edges = [1]
    while edges[-1] < length:
        edges.append(2 * edges[-1])
    return edges


@torch.no_grad()
def test_model(network: StackForCausalLM, settings: Sequence[RecallSetting], rows: int) -> dict[str, np.ndarray]:
    """Accuracy by number of pairs, and by distance between pair and query, on fresh rows in float32."""
    device = next(network.parameters()).device
    edges = distance_edges(settings[0].length)
    right, seen = (torch.zeros(len(settings), len(edges) - 1, dtype=torch.float64) for _ in range(2))
    size = max(1, min(rows, 64))
    for place, setting in enumerate(settings):
        for start in range(0, rows, size):
            generator = torch.Generator(device).manual_seed(step_seed(TEST_SEED + place, start))
            drawn = recall_rows(setting, min(size, rows - start), generator)
            states = network.model(drawn.ids).last_hidden_state
            index = drawn.positions[..., None].expand(-1, -1, states.shape[-1])
            hit = network.lm_head(states.gather(1, index)).argmax(-1) == drawn.targets
            bins = torch.bucketize(drawn.distances, torch.tensor(edges[1:], device=device), right=True)
            seen[place] += torch.bincount(bins.flatten(), minlength=len(edges) - 1).cpu()
            right[place] += torch.bincount(bins[hit], minlength=len(edges) - 1).cpu()
    return {"right": right.numpy(), "queries": seen.numpy()}


def look_into(network: StackForCausalLM, config: RecallConfig) -> dict[str, np.ndarray]:
    """Token similarity by depth, influence half-life, and decays of a trained model, on recall prompts."""
    import repflow
    from repflow.studies import measure
    from repflow.studies.engine.study import ONE
    from repflow.studies.memory.study import STUDY, MemoryConfig
    from repflow.studies.recency.study import influence

    setting = config.tests()[0]
    prompts = recall_prompts(
        config.vocabulary, length=setting.length, samples=config.flow_samples, seed=TEST_SEED, pairs=setting.pairs
    )
    loaded = repflow.load(network)
    flow = measure.run(
        measure.MeasureConfig(samples=len(prompts), metrics=["token_similarity"]), model=loaded, given=prompts
    )
    curve = influence(loaded, prompts)
    readings = {
        "token_similarity": flow["token_similarity"].mean(1),
        "half_reach": np.array(np.nanmean(curve["half_reach"])),
        "kappa": np.array(np.nanmean(curve["kappa"])),
    }
    if network.config.mixers[0]["name"] == "softmax_attention":
        return readings
    memory = STUDY.run(MemoryConfig(samples=len(prompts)), models={ONE: loaded}, given=prompts)
    if "half_life" in memory:
        readings["half_life"] = np.median(memory["half_life"], 1)
        readings["A_range"] = memory["A_range"].mean(1)
    return readings
