"""check_mixer: does a mixer keep the promises of `Mixer`? For the families of this package and for one's own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.base import Mixer
from repflow.mixers.scan.forms import fast_recurrence, recurrence
from repflow.mixers.scan.preference import prefer
from repflow.mixers.transition import AnyTransition, DeltaTransition, Transition

TOLERANCE = 1e-6
ROUNDING = 1e-9
"""Tolerance where two results differ by rounding alone: a Fourier transform or another blocking of a product."""
NOTHING = 1e-13
"""Share of the output below which a change is rounding."""
OPERATORS = 6
"""Tokens over which every product of operators is written out."""
LONGEST = 2**30
"""Tokens by which every parameter must be used."""
DIFFERENCE = 1e-5
STEP = 1e-6
"""Tolerance and step of the finite difference: small, since a norm of a few channels bends sharply."""


@dataclass(frozen=True)
class Report:
    """What check_mixer found.

    Attributes:
        family: Family of the mixer.
        state_size: Its state size; None without a recurrence.
        errors: Relative error of each check, in the order they ran.
        contribution: How far the recurrence moves the output, relative to the output; errors of the recurrence are
            relative to this. A tiny one is not a fault, only a hint that the initialisation mutes the recurrence.
        expansion: Largest factor by which one step of a non-diagonal transition lengthens a state (the spectral norm of
            its operator), on the inputs checked; None for a diagonal one. Above 1 memories can grow.
    """

    family: str
    state_size: int | None
    errors: dict[str, float]
    contribution: float | None
    expansion: float | None = None

    def __str__(self) -> str:
        rows = [f"{self.family}: {len(self.errors)} checks passed, state size {self.state_size}"]
        return "\n".join(rows + [f"  {name:<20} {error:.1e}" for name, error in self.errors.items()])


def check_mixer(
    mixer: Mixer,
    *,
    batch: int = 3,
    tokens: int = 20,
    long: int = 300,
    seed: int = 0,
    noise: float = 0.02,
    leaky: bool = False,
) -> Report:
    """Hold a mixer to the promises of `Mixer`, in float64, on a copy.

    | check | what must hold | relative error |
    |---|---|---|
    | shape | finite (batch, token, width) out, the same when called again | 0 |
    | transition | parts broadcastable to (batch, token, channel, state), or those of a `DeltaTransition` | |
    | state size | channel × state (complex twice) = `state_size`; None without a recurrence | 0 |
    | recurrence | readout(recurrence(transition(x)), x) = forward(x), also over `long` tokens | 1e-6 |
    | fast recurrence | the generic chunked form of the same transition | 1e-6 |
    | operators | a non-diagonal recurrence = sums of products of its operators, written out as matrices | 1e-6 |
    | causality | later tokens change no output, and no output has a gradient to them | 1e-9 |
    | length | forward of the first 1, 2, ... tokens = the first outputs of all, also of `long` | 1e-9 |
    | batch | each sample alone, and beside others | 1e-9 |
    | gradient | finite, at every parameter, the recurrence's (also over `long`) and (1e-5) a finite difference | 1e-6 |

    A mixer with a `surrogate` gradient is not compared with finite differences. Parameters that `unused` names for a
    length must have no gradient there; what it names must be used by longer sequences.

    Errors of the recurrence are relative to what the recurrence contributes, not to the output: a term that the
    initialisation makes tiny would pass whatever it is.

    Args:
        mixer: The mixer; it stays as it is.
        batch: Samples, at least 2.
        tokens: Tokens, at least 3.
        long: Tokens of a longer sequence, to cross the chunks of fast forms.
        seed: Of inputs and noise.
        noise: Standard deviation of what is added to the copy's parameters, so that initial zeros hide nothing.
        leaky: Said by name: outputs may depend on later tokens, so causality and length are not checked.

    Raises:
        InputError: A promise is broken; names the check and the size of the error.

    >>> from repflow.mixers import build
    >>> sorted(check_mixer(build("linear_attention", 8)).errors)[:3]
    ['batch', 'causality', 'fast recurrence']
    """
    _check_request(mixer, batch, tokens, long, noise)
    generator = torch.Generator().manual_seed(seed)
    with prefer("auto"):  # the fast forms, whatever stands around this call
        probe = _Probe(_copy(mixer, noise, generator), generator, batch, tokens, long)
        checks: list[Callable[[], None]] = [probe.shape]
        if mixer.recurrent:
            checks += [probe.transition, probe.recurrence, probe.fast_recurrence, probe.operators]
        else:
            checks += [probe.no_transition]
        checks += [] if leaky else [probe.causality, probe.length]
        for check in [*checks, probe.batch, probe.gradient]:
            check()
    return Report(mixer.family, mixer.state_size, probe.errors, probe.contribution, probe.expansion)


def check_causality(mixer: Mixer, *, tokens: int = 12, seed: int = 0) -> None:
    """The check 'causality' alone: refuse a mixer whose outputs depend on later tokens.

    >>> from repflow.mixers import build
    >>> check_causality(build("s6", 8))
    """
    _check_request(mixer, 2, tokens, 1, 0.0)
    generator = torch.Generator().manual_seed(seed)
    with prefer("auto"):
        _Probe(_copy(mixer, 0.02, generator), generator, 2, tokens, 1).causality()


def _check_request(mixer: Any, batch: int, tokens: int, long: int, noise: float) -> None:
    if not isinstance(mixer, Mixer):
        raise InputError(
            teach(
                "a repflow.mixers.Mixer", type(mixer).__name__, "derive your module from it, or use build(name, width)"
            )
        )
    if batch < 2 or tokens < 3 or long < 1 or noise < 0:
        raise InputError(
            teach(
                "at least 2 samples, 3 tokens, a longer sequence of at least 1 and noise of at least 0",
                f"batch={batch}, tokens={tokens}, long={long}, noise={noise}",
                "leave the arguments out for the defaults",
            )
        )


def _copy(mixer: Mixer, noise: float, generator: torch.Generator) -> Mixer:
    """float64 copy on the CPU, in evaluation mode, with noise on its parameters."""
    twin = copy.deepcopy(mixer).to("cpu").double().eval()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            parameter.requires_grad_(True)
    return twin


def _error(got: Tensor, wanted: Tensor, scale: float | None = None) -> float:
    """Largest difference, relative to the largest entry or to `scale`; infinite where one is NaN."""
    scale = float(wanted.detach().abs().max()) if scale is None else scale
    difference = float((got - wanted).detach().abs().max())
    if difference == 0:
        return 0.0
    error = difference / scale if scale > 0 else float("inf")
    return error if error == error else float("inf")


def _sequential(transition: AnyTransition) -> Tensor:
    y = recurrence(transition)
    assert isinstance(y, Tensor)
    return y


class _Probe:
    """A mixer, its inputs and the errors so far."""

    def __init__(self, mixer: Mixer, generator: torch.Generator, batch: int, tokens: int, long: int) -> None:
        self.mixer = mixer
        self.generator = generator
        self.errors: dict[str, float] = {}
        self.contribution: float | None = None
        self.expansion: float | None = None
        self.x = self._draw(batch, tokens)
        self.long = self._draw(2, long)
        with torch.no_grad():
            self.out = mixer(self.x)

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, self.mixer.width, generator=self.generator, dtype=torch.float64)

    def note(self, check: str, error: float, tolerance: float, what: str, remedy: str) -> None:
        self.errors[check] = max(error, self.errors.get(check, 0.0))
        if not error <= tolerance:
            raise InputError(
                teach(
                    f"{what} to a relative error of {tolerance:.0e} (check '{check}' of {self.mixer.family})",
                    f"an error of {error:.2g}",
                    remedy,
                )
            )

    @torch.no_grad()
    def shape(self) -> None:
        x, out = self.x, self.out
        if out.shape != x.shape or out.dtype != x.dtype:
            raise InputError(
                teach(
                    f"{x.dtype} of shape {tuple(x.shape)} out (check 'shape' of {self.mixer.family})",
                    f"{out.dtype} of shape {tuple(out.shape)}",
                    "return (batch, token, width) in the input's dtype; keep complex parts as two real parameters",
                )
            )
        bad = int((~out.isfinite()).sum())
        self.note("shape", bad / out.numel(), 0.0, "finite outputs", "look for a division or an overflowing exp")
        again = _error(self.mixer(x), out)
        self.note("shape", again, 0.0, "the same output when called again", "keep no state and no noise between calls")

    @torch.no_grad()
    def transition(self) -> None:
        transition = self.mixer.transition(self.x)
        shapes = ", ".join(f"{n} {tuple(p.shape)}" for n, p in zip(transition._fields, transition, strict=True))
        if isinstance(transition, DeltaTransition):
            counted = self._delta_size(transition, shapes)
        else:
            counted = self._diagonal_size(transition, shapes)
        declared = self.mixer.state_size
        if counted != declared:
            raise InputError(
                teach(
                    f"state_size {counted}, the transition's channels × states, complex counted twice "
                    f"(check 'state size' of {self.mixer.family}; {shapes})",
                    f"{declared}, off by {counted - declared if declared is not None else 'all of it'}",
                    "correct state_size, or the parts' axes",
                )
            )
        self.errors["state size"] = 0.0

    def _diagonal_size(self, transition: Transition, shapes: str) -> int:
        """Numbers of the state of a diagonal transition, whose parts must fit together."""
        batch, tokens = self.x.shape[:2]
        try:
            shape = torch.broadcast_shapes((batch, tokens, 1, 1), *(p.shape for p in transition))  # type: ignore[no-untyped-call]
        except RuntimeError:
            shape = torch.Size()
        if len(shape) != 4 or tuple(shape[:2]) != (batch, tokens):
            expected = f"parts broadcastable to ({batch}, {tokens}, channel, state) (check 'transition', {self._name})"
            raise InputError(teach(expected, shapes, "fold heads into the channel axis and keep axes of size 1"))
        twice = any(part.is_complex() for part in (transition.A, transition.b, transition.delta))
        return int(shape[2] * shape[3] * (2 if twice else 1))

    def _delta_size(self, transition: DeltaTransition, shapes: str) -> int:
        """Numbers of the state of a delta rule, whose parts must fit together."""
        decay, k, v, q, beta = transition
        front = tuple(self.x.shape[:2])
        fits = v.ndim == k.ndim == 4 and v.shape[:2] == k.shape[:2] == front and v.shape[2] % k.shape[2] == 0
        fits = fits and q.shape == k.shape and tuple(beta.shape) == (*front, v.shape[2])
        wanted = (*front, v.shape[2], k.shape[-1]) if fits else ()
        fits = fits and decay.ndim == 4 and all(own in (1, of) for own, of in zip(decay.shape, wanted, strict=True))
        if not fits:
            axes = "({}, {}".format(*front)
            expected = (
                f"v {axes}, head, value), k and q {axes}, key head, key), beta {axes}, head) and A broadcastable to "
            )
            expected += f"{axes}, head, key) (check 'transition', {self._name})"
            raise InputError(teach(expected, shapes, "key heads must divide the heads; keep axes of size 1 in A"))
        return int(v.shape[2] * v.shape[3] * k.shape[3])

    @property
    def _name(self) -> str:
        return self.mixer.family

    @torch.no_grad()
    def no_transition(self) -> None:
        if self.mixer.state_size is not None:
            raise InputError(
                teach(
                    f"state_size None without a recurrence (check 'state size' of {self.mixer.family})",
                    str(self.mixer.state_size),
                    "return None, or set recurrent = True and write transition and readout",
                )
            )
        self.errors["state size"] = 0.0

    @torch.no_grad()
    def recurrence(self) -> None:
        for x in (self.x, self.x[:, :1], self.long):
            y = _sequential(self.mixer.transition(x))
            wanted = self.mixer.readout(y, x)
            # another sample's y in place of its own: what the recurrence decides of the output, whatever norm follows
            moved = float((wanted - self.mixer.readout(y.roll(1, 0), x)).abs().max())
            if x is self.x:
                if not moved > NOTHING * float(wanted.abs().max()):
                    raise InputError(
                        teach(
                            f"an output that depends on the recurrence (check 'recurrence' of {self.mixer.family})",
                            "the same output when y is exchanged between samples",
                            "use y in readout, or check with noise > 0 where an output weight starts at 0",
                        )
                    )
                self.contribution = moved / float(wanted.abs().max())
            self.note(
                "recurrence",
                _error(self.mixer(x), wanted, moved),
                TOLERANCE,
                f"readout(recurrence(transition(x)), x) = forward(x) over {x.shape[1]} tokens",
                "compare y of both first; mind delta, which belongs to the transition and not to b",
            )

    @torch.no_grad()
    def fast_recurrence(self) -> None:
        for x in (self.x, self.x[:, :1], self.long):
            transition = self.mixer.transition(x)
            self.note(
                "fast recurrence",
                _error(fast_recurrence(transition), _sequential(transition)),
                TOLERANCE,
                "the chunked recurrence equal to the sequential one",
                "look for decays of more than 1 in size, which no chunk can carry",
            )

    @torch.no_grad()
    def operators(self) -> None:
        """Every operator as a matrix, and every path from a token to a later one as their product."""
        short = self.x[:1, :OPERATORS]
        transition = self.mixer.transition(short)
        if not isinstance(transition, DeltaTransition):
            return
        steps = transition.operators()[0]  # (token, head, key, key)
        self.expansion = float(torch.linalg.matrix_norm(steps, ord=2).max())
        _, k, v, q, beta = (part[0] for part in transition.per_head())
        wanted = torch.zeros_like(v)
        for token in range(len(steps)):
            for source in range(token + 1):
                written = beta[source, :, None] * k[source]
                for step in steps[source + 1 : token + 1]:
                    written = (step @ written[..., None])[..., 0]
                wanted[token] += (q[token] * written).sum(-1, keepdim=True) * v[source]
        self.note(
            "operators",
            _error(_sequential(transition)[0], wanted.flatten(1)),
            TOLERANCE,
            "the recurrence equal to sums of products of its operators",
            "decays multiply the state before the key is looked up",
        )

    @torch.no_grad()
    def length(self) -> None:
        tokens = self.x.shape[1]
        for count in sorted({1, 2, tokens // 2, tokens - 1}):
            self.note(
                "length",
                _error(self.mixer(self.x[:, :count]), self.out[:, :count], float(self.out.abs().max())),
                ROUNDING,
                f"outputs of {count} tokens equal to the first {count} of {tokens}",
                "use nothing that depends on the number of tokens",
            )
        whole, most = self.mixer(self.long), self.long.shape[1]
        for count in sorted({1, most // 2, most - 1} - {0}):
            self.note(
                "length",
                _error(self.mixer(self.long[:, :count]), whole[:, :count], float(whole.abs().max())),
                ROUNDING,
                f"outputs of {count} tokens equal to the first {count} of {most}",
                "look at the ends of a fast form's chunks",
            )

    def causality(self) -> None:
        tokens, remedy = self.x.shape[1], "mask the future, and pad convolutions on the left"
        for first in sorted({1, tokens // 2, tokens - 1}):
            changed = self.x.clone()
            changed[:, first:] = 10 * self._draw(self.x.shape[0], tokens - first)
            with torch.no_grad():
                error = _error(self.mixer(changed)[:, :first], self.out[:, :first], float(self.out.abs().max()))
            what = f"outputs before token {first} that do not change with it"
            self.note("causality", error, ROUNDING, what, remedy)
            x = self.x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(self.mixer(x)[:, :first].square().sum(), x)
            if not bool(gradient.isfinite().all()):
                return  # check 'gradient' names what it comes from
            leak = _error(gradient[:, first:], torch.zeros(()), float(gradient.abs().max()))
            self.note("causality", leak, ROUNDING, f"no gradient from tokens before {first} to later ones", remedy)

    @torch.no_grad()
    def batch(self) -> None:
        remedy = "take no statistic over the batch axis"
        for index in range(self.x.shape[0]):
            alone = self.mixer(self.x[index : index + 1])
            self.note("batch", _error(alone, self.out[index : index + 1]), ROUNDING, "each sample as if alone", remedy)
        changed = self.x.clone()
        changed[1:] *= 10
        error = _error(self.mixer(changed)[:1], self.out[:1])
        self.note("batch", error, ROUNDING, "a sample that does not change with the others", remedy)

    def gradient(self) -> None:
        never = self.mixer.unused(LONGEST)
        if never:
            expected = f"parameters that long sequences use (check 'gradient' of {self.mixer.family})"
            raise InputError(teach(expected, f"{never[0]}, unused at any length", "remove the parameter"))
        weight = self._draw(*self.x.shape[:2])
        own, names, parameters = self._both_gradients(self.x, weight)
        self._both_gradients(self.long, self._draw(*self.long.shape[:2]))  # across the chunks of fast forms
        if not self.mixer.surrogate:
            self._finite_difference(own, names, parameters, weight)

    def _both_gradients(self, x: Tensor, weight: Tensor) -> tuple[list[Tensor], list[str], list[Tensor]]:
        """Gradients of a weighted sum of the outputs, compared with the recurrence's; with names and parameters."""
        x = x.clone().requires_grad_()
        named = dict(self.mixer.named_parameters())
        names, parameters = ["input", *named], [x, *named.values()]
        own = self._gradients((self.mixer(x) * weight).sum(), names, parameters)
        if self.mixer.recurrent:
            y = _sequential(self.mixer.transition(x))
            reference = self._gradients((self.mixer.readout(y, x) * weight).sum(), names, parameters)
            floor = 1e-6 * max(float(part.abs().max()) for part in reference)
            for name, got, wanted in zip(names, own, reference, strict=True):
                error = _error(got, wanted, max(float(wanted.abs().max()), floor))
                what = f"the gradient of {name} equal to the recurrence's"
                self.note("gradient", error, TOLERANCE, what, "look at the fast form's backward pass")
        return own, names, parameters

    def _gradients(self, loss: Tensor, names: list[str], parameters: list[Tensor]) -> list[Tensor]:
        slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
        tokens = parameters[0].shape[1]
        unused = self.mixer.unused(tokens)
        gradients = []
        for name, parameter, gradient in zip(names, parameters, slopes, strict=True):
            absent = gradient is None or not bool(gradient.any())
            if name in unused and not absent:
                expected = f"no gradient at {name}, unused by {tokens} tokens (check 'gradient' of {self.mixer.family})"
                raise InputError(teach(expected, "one that is not zero", "leave its name out of unused"))
            # a single token has no earlier one, and the other sequence has several
            if absent and name != "input" and (name in unused or tokens == 1):
                gradients.append(torch.zeros_like(parameter))
                continue
            if gradient is None or absent or not bool(gradient.isfinite().all()):
                state = "none" if gradient is None else "all zero" if absent else "not finite"
                remedy = "remove the parameter if nothing uses it; look for detach, or for exp before a mask"
                expected = f"a finite gradient that reaches {name} (check 'gradient' of {self.mixer.family})"
                raise InputError(teach(expected, f"a gradient that is {state}", remedy))
            gradients.append(gradient)
        return gradients

    @torch.no_grad()
    def _finite_difference(
        self, gradients: list[Tensor], names: list[str], parameters: list[Tensor], weight: Tensor
    ) -> None:
        """Central difference along a random direction of each parameter, against the gradient's."""
        floor = 1e-3 * max(float(gradient.norm()) for gradient in gradients)
        for name, parameter, gradient in zip(names, parameters, gradients, strict=True):
            direction = torch.randn(parameter.shape, generator=self.generator, dtype=torch.float64)
            ends = []
            for sign in (1, -1):
                parameter += sign * STEP * direction
                ends.append(float((self.mixer(parameters[0]) * weight).sum()))
                parameter -= sign * STEP * direction
            difference = torch.tensor((ends[0] - ends[1]) / (2 * STEP))
            error = _error(difference, (gradient * direction).sum(), max(float(gradient.norm()), floor))
            what = f"the gradient of {name} equal to a finite difference"
            self.note("gradient", error, DIFFERENCE, what, "look for detach, in-place writes or a wrong backward pass")
