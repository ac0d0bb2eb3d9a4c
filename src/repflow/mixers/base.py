"""Mixer: what every family of this package is, written by its transition (`repflow.mixers.transition`) and readout."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from repflow.core.errors import InputError, teach
from repflow.mixers.parts.convolution import CausalConvolution
from repflow.mixers.parts.rotary import starting_at
from repflow.mixers.scan.carry import Carry, follow, last_state
from repflow.mixers.scan.chunked import fast_recurrence
from repflow.mixers.scan.preference import current
from repflow.mixers.transition import AnyTransition


class Mixer(nn.Module):
    """A causal map (batch, token, width) → (batch, token, width).

    Where the family has a recurrence, `readout(recurrence(transition(x)), x)` equals `forward(x)`; `check_mixer` tests
    it.

    Attributes:
        family: Name under which `build` makes it.
        recurrent: Whether the family has a `transition`.
        kind: What a recurrent layer of it is called: recurrent, or ssm where it discretises a state-space model.
        reordered: Whether it stands inside a mixer that changes the tokens' order (`repflow.mixers.reorder`): its
            recurrence is then not read.
        width: Channels in and out.
    """

    family: ClassVar[str]
    recurrent: ClassVar[bool] = True
    kind: ClassVar[str] = "recurrent"
    reordered: bool = False

    def __init__(self, width: int) -> None:
        super().__init__()
        if width < 1:
            raise InputError(teach("a width of at least 1", str(width), "give the width of the residual stream"))
        self.width = width

    @property
    def state_size(self) -> int | None:
        """Real numbers of h kept per sequence (a complex one counts twice); None where the family has no h.

        A window of past inputs (a short convolution's, an attention cache) is not counted: it is not a summary of them.
        """
        raise NotImplementedError

    @property
    def reach(self) -> int:
        """Tokens before the current one that `transition` and `readout` look at, beside the state."""
        taps = [part.kernel_size[0] for part in self.modules() if isinstance(part, CausalConvolution)]
        return max(taps, default=1) - 1

    def advance(self, x: Tensor, carry: Carry) -> Tensor:
        """Mix tokens that follow those of `carry` (`mixers.scan.carry`), which moves on; a new one for a prompt."""
        self.check_input(x)
        before = carry.seen
        whole = carry.lead(x, self.reach)
        front = whole.shape[1] - x.shape[1]
        if before == 0:
            y: Tensor = self(x)
            carry.state = {"h": last_state(self.transition, x, self.reach)}
        else:
            assert carry.state is not None
            with starting_at(before - front):
                parts, h = follow(self.transition(whole), front, carry.state["h"])
                y = self.readout(parts, whole)[:, front:]
            carry.state = {"h": h}
        carry.seen = before + x.shape[1]
        return y

    def check_input(self, x: Tensor) -> None:
        """Refuse what is not (batch, token, width) of floats with at least one token."""
        if x.ndim != 3 or x.shape[1] == 0 or x.shape[2] != self.width or not x.is_floating_point():
            raise InputError(
                teach(
                    f"floats (batch, token, width) with at least one token and width {self.width}",
                    f"{x.dtype} of shape {tuple(x.shape)}",
                    "embed token ids first; add a batch axis with x[None]",
                )
            )

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens; a family overrides this where it has a faster form than the chunked recurrence."""
        self.check_input(x)
        self.reference_wanted("chunked", "the form for any recurrence")
        return self.by_recurrence(x)

    def by_recurrence(self, x: Tensor) -> Tensor:
        """`forward` through transition and readout, in chunks, or token by token where the reference is wanted."""
        return self.readout(fast_recurrence(self.transition(x)), x)

    def reference_wanted(self, form: str, reason: str) -> bool:
        """Whether the call stands under a preference for the sequential reference (`repflow.mixers.scan.preference`).

        What runs is noted there: the reference, or else `form` with its reason.
        """
        preference = current()
        wanted = preference.path == "reference"
        if preference.note is not None:
            preference.note(*(("reference", "asked for") if wanted else (form, reason)))
        return wanted

    @property
    def mixing(self) -> str:
        """How it mixes tokens, in a word: its kind, or attention where it has no recurrence."""
        return self.kind if self.recurrent else "attention"

    @property
    def surrogate(self) -> bool:
        """Whether its gradient stands for one that is zero almost everywhere, as that of a hard sort is."""
        return False

    def unused(self, tokens: int) -> tuple[str, ...]:
        """Names of parameters that outputs of this many tokens do not depend on, as a sort's where nothing is sorted.

        What depends on earlier tokens is unused by a single one in every family, and need not be named.
        """
        return ()

    @property
    def score_width(self) -> int:
        """Channels of `score_features`."""
        return self.width

    def score_features(self, tokens: Tensor) -> Tensor:
        """What a token's importance is read from (`repflow.mixers.reorder`), of what `enter` gives."""
        return tokens

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """What is mixed over tokens, and a gate behind it: `leave(core(tokens), gate)` equals `forward(x)`."""
        return x, None

    def core(self, tokens: Tensor) -> Tensor:
        """Mix the tokens that `enter` gives, in their order."""
        mixed: Tensor = self(tokens)
        return mixed

    def leave(self, y: Tensor, gate: Tensor | None) -> Tensor:
        """What follows `core`, token by token."""
        return y

    def core_behind(self, past: Tensor, tokens: Tensor, size: int) -> Tensor:
        """`core` of each chunk of `size` tokens behind the chunks of `past` that lie before it.

        The plain form, a pass per chunk; a family overrides it where it has a faster one.

        Args:
            past: What stands in place of the earlier chunks (batch, token, channel).
            tokens: As `enter` gives them.
            size: Tokens of a chunk.
        """
        parts = []
        for start in range(0, tokens.shape[1], size):
            whole = torch.cat([past[:, :start], tokens[:, start : start + size]], 1)
            parts.append(self.core(whole)[:, start:])
        return torch.cat(parts, 1)

    def transition(self, x: Tensor) -> AnyTransition:
        """Recurrence of the input x (batch, token, width)."""
        raise InputError(
            teach(
                "a mixer with a recurrence",
                f"{self.family}, whose memory grows with the tokens",
                "read its attention weights instead, or choose a recurrent family",
            )
        )

    def decay_rates(self) -> Tensor | None:
        """Rates (channel, state) where `transition(x).A` is exp(step · rate) of `decay_steps`; None where it is not.

        States of decay exactly 0 have no rate and are left out.
        """
        return None

    def decay_steps(self, x: Tensor) -> Tensor:
        """Steps (batch, token, channel) that go with `decay_rates`."""
        raise NotImplementedError

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """All that follows the recurrence: gates, skip, norms, projections. y is (batch, token, channel)."""
        raise NotImplementedError
