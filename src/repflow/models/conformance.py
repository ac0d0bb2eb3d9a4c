"""check_model: are all states of an architecture read right? For those of the tables and for one's own."""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from repflow.core.errors import InputError, UnsupportedModelError, teach
from repflow.models.anatomy import MIXER_NAMES
from repflow.models.behaviour import Behaviour, observe
from repflow.models.families import EMBEDDING, FAMILIES, LAST_BLOCK
from repflow.models.load import load
from repflow.models.pretrained import Model
from repflow.models.repair import from_hidden_states

DRAWS = 3
MARGIN = 8
"""Sums of a few hundred terms round more than once."""
SUBLAYERS = ("attention", "mlp", "ssm", "recurrent", "conv")
FAMILY = "repflow.models.families.FAMILIES"


@dataclass(frozen=True)
class ModelReport:
    """What check_model found.

    Attributes:
        model_type: as in the configuration.
        layer_kinds: kind of each block.
        errors: largest relative error of each check, in the order they ran.
        tolerance: what the model itself makes of weights that are off in their last bit, times 8: errors up to it are
            rounding.
    """

    model_type: str
    layer_kinds: tuple[str, ...]
    errors: dict[str, float]
    tolerance: float

    def __str__(self) -> str:
        kinds = ", ".join(dict.fromkeys(self.layer_kinds))
        rows = [f"{self.model_type}: {len(self.errors)} checks passed; {len(self.layer_kinds)} blocks: {kinds}"]
        return "\n".join(rows + [f"  {name:<12} {error:.1e}" for name, error in self.errors.items()])


def check_model(network: PreTrainedModel, *, tokens: int = 20, seed: int = 0) -> ModelReport:
    """Hold an architecture to what repflow promises of its states; use a tiny random model of at least two blocks.

    | check | what must hold |
    |---|---|
    | load | the self-check at load: blocks found, in order, final norm and head |
    | states | those of the model's own tuple, which has all of them, or lacks the embedding or the raw last block |
    | logits | of the head, from the final norm's output |
    | padding | right-padded prompts have the states that each has alone |
    | branch | what a block adds is the step between states |
    | sublayers | attention, MLP and so on sum to what their block adds |
    | kinds | a block mixes tokens as its kind says: what it keeps of a prompt grows, or is a state that remembers |
    | memory | no state is held after the next block ran, and no hook is left behind |
    | row | the architecture's row in `repflow.models.families` says what its tuple lacks, if anything |

    Args:
        network: the model; it stays as it is.
        tokens: of each of three prompts.
        seed: of the prompts.

    Raises:
        InputError: a promise is broken; the message names the check.
        UnsupportedModelError: the model cannot be loaded.
    """
    if not isinstance(network, PreTrainedModel):
        remedy = "derive it from PreTrainedModel, or build one with AutoModelForCausalLM.from_config"
        raise InputError(teach("a transformers PreTrainedModel", type(network).__name__, remedy))
    model = load(copy.deepcopy(network))
    vocabulary = model.vocab_size
    ids = torch.randint(0, vocabulary, (3, tokens), generator=torch.Generator().manual_seed(seed)).to(model.device)
    probe = _Probe(network, model, ids, MARGIN * amplification(network, ids))
    for check in (probe.states, probe.logits, probe.padding, probe.branch, probe.sublayers, probe.kinds, probe.memory):
        check()
    probe.row()
    return ModelReport(model.model_type, tuple(model.layer_kinds), {"load": 0.0, **probe.errors}, probe.tolerance)


def nudged(network: PreTrainedModel, seed: int) -> PreTrainedModel:
    """The network with every parameter off by at most its last bit."""
    generator = torch.Generator().manual_seed(seed)
    twin: PreTrainedModel = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.is_floating_point():
                noise = 2 * torch.rand(parameter.shape, generator=generator).to(parameter.device) - 1
                parameter.mul_(1 + torch.finfo(parameter.dtype).eps * noise)
    return twin


def amplification(network: PreTrainedModel, ids: Tensor) -> float:
    """Largest relative change of a state when the weights are off in their last bit.

    Other CPUs, thread counts and batch shapes add in another order. To a model that is like such weights, and models
    answer very differently: the states of a tiny GPT-2 move by 5e-7, those of a tiny Mamba by 2e-4, since its random
    recurrence grows. A fixed tolerance is too strict for the one or blind for the other.
    """
    states = states_of(load(copy.deepcopy(network)), ids)
    return max(worst(states_of(load(nudged(network, seed)), ids), states) for seed in range(DRAWS))


def states_of(model: Model, ids: Tensor, mask: Tensor | None = None, kind: str = "residual") -> list[Tensor]:
    """Every state and the final norm's output."""
    states: list[Tensor] = []
    model.stream(ids, mask, kind=kind, on_state=lambda _, h: states.append(h.clone()), on_final_norm=states.append)
    return states


def worst(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Largest difference, each state's by its largest entry."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(actual, expected, strict=True))


class _Probe:
    """The checks, on one model and three prompts."""

    def __init__(self, network: PreTrainedModel, model: Model, ids: Tensor, tolerance: float) -> None:
        self.network = network
        self.model, self.ids, self.tolerance = model, ids, tolerance
        self.errors: dict[str, float] = {}
        self.known = FAMILIES.get(model.model_type)
        *self.hidden, self.normed = states_of(model, ids)

    def broken(self, check: str, expected: str, got: str, remedy: str) -> InputError:
        return InputError(teach(f"{expected} (check {check!r} of {self.model.model_type})", got, remedy))

    def hold(self, check: str, error: float, expected: str, remedy: str) -> None:
        self.errors[check] = max(error, self.errors.get(check, 0.0))
        if not error <= self.tolerance:
            raise self.broken(check, f"{expected} to a relative error of {self.tolerance:.0e}", f"{error:.1e}", remedy)

    def states(self) -> None:
        """Against transformers' own tuple; its last entry is the final norm's output."""
        with torch.no_grad():
            arguments = self.model.reading.arguments(self.ids, None)
            output = self.model.reading.base(**arguments, output_hidden_states=True)
        self.tuple = output.hidden_states
        if self.tuple is None or len(self.tuple) != self.model.n_states:
            got = "none" if self.tuple is None else f"{len(self.tuple)} entries"
            expected = f"a tuple of {self.model.n_states} hidden states"
            raise self.broken("states", expected, got, "return hidden_states where output_hidden_states asks for them")
        self.whole = worst(self.tuple, self.hidden) <= self.tolerance
        if self.whole:
            return self.hold("states", worst(self.tuple, self.hidden), "states as in the model's own tuple", "")
        raw = self.hidden[1:] if self.model.reading.tuple_skips_embedding else self.hidden[:-1]
        remedy = "where the architecture changes its own states, write Family(straighten=...)"
        self.hold("states", worst(raw, self.tuple[:-1]), "states as in the model's own tuple", remedy)
        return self.hold("states", worst([self.normed], [self.tuple[-1]]), "the final norm's output last", remedy)

    def logits(self) -> None:
        """Head, its factor and its soft cap."""
        if self.model.head is None:
            return
        with torch.no_grad():
            expected = self.model.network(**self.model.reading.arguments(self.ids, None)).logits
            error = worst([self.model.logits(self.normed)], [expected])
        self.hold("logits", error, "logits from the final norm's output", "look at what stands between norm and head")

    def padding(self) -> None:
        """Three lengths in one batch."""
        tokens = self.ids.shape[1]
        lengths = [tokens, max(2, 2 * tokens // 3), max(2, tokens // 4)]
        mask = torch.arange(tokens)[None] < torch.tensor(lengths)[:, None]
        mask = mask.to(self.ids.device)
        padded = states_of(self.model, torch.where(mask, self.ids, 0), mask)
        for row, length in enumerate(lengths):
            alone = states_of(self.model, self.ids[row : row + 1, :length])
            error = worst([state[row : row + 1, :length] for state in padded], alone)
            self.hold("padding", error, "a prompt's states whatever stands behind it", "make the model use its mask")

    def branch(self) -> None:
        """Steps of the stream."""
        *added, _ = states_of(self.model, self.ids, kind="branch")
        steps = [after - before for before, after in itertools.pairwise(self.hidden)]
        scale = max(float(state.abs().max()) for state in self.hidden)
        error = max(float((a - b).abs().max()) for a, b in zip(added, steps, strict=True)) / scale
        self.hold("branch", error, "the step between states as a block's branch", "a block must add to its input")

    def sublayers(self) -> None:
        """All parts of a block that can be named."""
        if problem := self.model.reading.sublayer_problem:
            known = ", ".join(MIXER_NAMES[:4])
            remedy = f"name the children that mix tokens ({known}, ...), or list them in Family(mixers=...) of {FAMILY}"
            raise self.broken("sublayers", "sublayers that sum to what their block adds", problem, remedy)
        self.errors["sublayers"] = 0.0  # held by the self-check at load, within the stream

    def kinds(self) -> None:
        """What a block's kind says of its way to mix tokens, compared with what it does."""
        for number, (kind, does) in enumerate(zip(self.model.layer_kinds, self._observed(), strict=True)):
            if not does.agrees(kind):
                children = ", ".join(name for name, _ in self.model.blocks[number].named_children())
                got = f"{kind} for block {number + 1} ({children}), which {does.words()}"
                remedy = f"list the child that does in Family(mixers=...) of {FAMILY}"
                raise self.broken("kinds", f"one of {', '.join(SUBLAYERS)} for a block that mixes tokens", got, remedy)
        self.errors["kinds"] = 0.0

    def _observed(self) -> list[Behaviour]:
        """In float64, in which no state fades below rounding, where the architecture runs in it."""
        try:
            model = load(copy.deepcopy(self.network).double())
        except UnsupportedModelError:
            model = self.model
        return observe(model.reading, model.network.config)

    def memory(self) -> None:
        """Models keep the embedding output in a variable of their own, and a block's input until it is done."""
        seen: list[weakref.ref] = []

        def watch(_: int, hidden: Tensor) -> None:
            seen.append(weakref.ref(hidden))
            if alive := [number for number, ref in enumerate(seen[1:-2], start=1) if ref() is not None]:
                got = f"state {alive[0]} still there at state {len(seen) - 1}"
                raise self.broken("memory", "states that are let go", got, "keep no list of hidden states")

        before = self._hooks()
        self.model.stream(self.ids, on_state=watch)
        if self._hooks() != before:
            raise self.broken("memory", "no hook left behind", f"{self._hooks() - before}", "remove what forward adds")
        self.errors["memory"] = 0.0

    def _hooks(self) -> int:
        modules = self.model.network.modules()
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)

    def row(self) -> None:
        """The row, and that tuples made elsewhere are repaired with it; a whole tuple needs neither."""
        if self.whole:
            return
        lacks = EMBEDDING if self.model.reading.tuple_skips_embedding else LAST_BLOCK
        if self.known is None or self.known.missing != lacks:
            got = "no row" if self.known is None else f"{self.known.missing!r}"
            wanted = "Family()" if lacks == LAST_BLOCK else f"Family({lacks!r})"
            remedy = f'write "{self.model.model_type}": {wanted} in {FAMILY}'
            raise self.broken("row", f"a row that says the tuple lacks the {lacks}", got, remedy)
        repaired = from_hidden_states(self.tuple, self.model.model_type)
        present = [index for index in range(self.model.n_states) if index not in repaired.missing]
        error = worst([repaired.hidden[index] for index in present], [self.hidden[index] for index in present])
        self.hold("row", error, "a tuple that is repaired by its row", "correct `missing` in the row")
