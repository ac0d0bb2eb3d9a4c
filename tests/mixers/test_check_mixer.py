"""check_mixer: every check can fail, and says which and by how much."""

import inspect
import re

import pytest
import torch
from torch import nn

from repflow.core.errors import InputError
from repflow.mixers import Mixer, Transition, build, check_mixer
from repflow.mixers.scan.forms import fast_recurrence
from repflow.mixers.scan.preference import prefer


class Average(Mixer):
    """y_t = x_t + y_{t−1} / 2 channel by channel, times a weight: right in all respects."""

    family = "average"

    def __init__(self, width=4):
        super().__init__(width)
        self.weight = nn.Parameter(torch.ones(width))
        self.logit = nn.Parameter(torch.zeros(width))

    @property
    def state_size(self):
        return self.width

    def transition(self, x):
        one = torch.ones_like(x[:1, :1, :1, None])
        return Transition(self.logit.sigmoid()[:, None], x[..., None], one, one)

    def readout(self, y, x):
        return y * self.weight + x


class Shape(Average):
    def readout(self, y, x):
        return super().readout(y, x)[..., :-1]


class Kind(Average):
    def readout(self, y, x):
        return super().readout(y, x).float()


class Infinite(Average):
    def readout(self, y, x):
        return super().readout(y, x) / 0


class Restless(Average):
    calls = 0

    def readout(self, y, x):
        Restless.calls += 1
        return super().readout(y, x) + 1e-3 * Restless.calls


class Axes(Average):
    def transition(self, x):
        parts = super().transition(x)
        return parts._replace(b=parts.b.transpose(0, 1))


class FiveAxes(Average):
    def forward(self, x):
        return self.readout(fast_recurrence(super().transition(x)), x)

    def transition(self, x):
        return Transition(*(part[None] for part in super().transition(x)))


class Size(Average):
    @property
    def state_size(self):
        return self.width + 1


class Unsized(Average):
    @property
    def state_size(self):
        return None


class ComplexSize(Average):
    """A complex state counts twice."""

    def transition(self, x):
        parts = super().transition(x)
        return parts._replace(A=parts.A * torch.ones_like(parts.A, dtype=torch.complex128))


class Unlike(Average):
    """forward has another decay than the transition, by a part in a hundred thousand."""

    def forward(self, x):
        parts = self.transition(x)
        return self.readout(fast_recurrence(parts._replace(A=parts.A * (1 - 1e-5))), x)


class Faint(Unlike):
    """The same fault in a term of 1e-8 of the output: relative to the output it cannot be seen."""

    def readout(self, y, x):
        return 1e-8 * y * self.weight + x


class Muted(Average):
    def readout(self, y, x):
        return x * self.weight * self.logit


class LongOnly(Average):
    """Wrong beyond 64 tokens alone, as a fast form that forgets between chunks."""

    def forward(self, x):
        ends = range(0, x.shape[1], 64)
        return torch.cat([super(LongOnly, self).forward(x[:, end : end + 64]) for end in ends], dim=1)


class Length(Average):
    def readout(self, y, x):
        return super().readout(y, x) / x.shape[1]


class Future(Average):
    """A leak of the next token, a millionth strong."""

    def readout(self, y, x):
        return super().readout(y, x) + 1e-6 * torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], dim=1)


class FutureGradient(Average):
    """The value is causal, the gradient is not."""

    def readout(self, y, x):
        later = torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], dim=1)
        return super().readout(y, x) + later - later.detach()


class Batch(Average):
    def readout(self, y, x):
        return super().readout(y, x) - 1e-6 * x.mean(0)


class Unreached(Average):
    def __init__(self, width=4):
        super().__init__(width)
        self.spare = nn.Parameter(torch.ones(width))


class Detached(Average):
    def readout(self, y, x):
        return y * (self.weight.detach() + 0 * self.weight) + x


class Backward(Average):
    """Right forward, another gradient in the fast form than in the recurrence."""

    def forward(self, x):
        parts = self.transition(x)
        still = parts._replace(b=parts.b - 0.5 * (parts.b - parts.b.detach()))
        return self.readout(fast_recurrence(still), x)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 if gradient.shape[1] < 64 else 1.001)


class LongBackward(Average):
    """A backward pass that is wrong beyond the first chunk."""

    def forward(self, x):
        return self.readout(_Scaled.apply(fast_recurrence(self.transition(x))), x)


class LongLength(Average):
    """Without a recurrence to be held against; the future leaks in from the second chunk on."""

    recurrent = False
    state_size = None

    def forward(self, x):
        y = x.cumsum(1) * self.weight * self.logit.exp()
        return y if x.shape[1] <= 64 else y + y[:, 64:65]


class NoRecurrence(Mixer):
    """A skip of the gradient that only a finite difference can see, since there is no recurrence beside it."""

    family = "none"
    recurrent = False
    state_size = None

    def __init__(self, width=4):
        super().__init__(width)
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x.cumsum(1) * self.weight + x.detach() * self.weight


class NaNGradient(Average):
    """exp before the mask: the value is right, the gradient NaN."""

    def readout(self, y, x):
        over = torch.where(torch.zeros_like(y, dtype=torch.bool), (1e4 * y.abs() * self.weight.abs()).exp(), 0)
        return super().readout(y, x) + over


class Stateless(NoRecurrence):
    state_size = 3

    def forward(self, x):
        return x.cumsum(1) * self.weight


def test_a_right_mixer_passes_with_a_report():
    report = check_mixer(Average())
    assert report.family == "average"
    assert report.state_size == 4
    assert list(report.errors) == [
        "shape",
        "state size",
        "recurrence",
        "fast recurrence",
        "causality",
        "length",
        "batch",
        "gradient",
    ]
    assert all(error < 1e-6 for error in report.errors.values())
    assert 0.1 < report.contribution < 10
    assert re.search(r"average: 8 checks passed, state size 4\n  shape +0.0e\+00", str(report))


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (Shape, "shape", r"got torch.float64 of shape \(3, 20, 3\)"),
        (Kind, "shape", "got torch.float32"),
        (Infinite, "shape", "finite outputs"),
        (Restless, "shape", "the same output when called again"),
        (FiveAxes, "transition", r"A \(1, 4, 1\), b \(1, 3, 20, 4, 1\)"),
        (Size, "state size", "got 5, off by -1"),
        (Unsized, "state size", "got None"),
        (ComplexSize, "state size", "state_size 8.*got 4, off by 4"),
        (Unlike, "recurrence", "over 20 tokens"),
        (Faint, "recurrence", "over 20 tokens"),
        (LongOnly, "recurrence", "over 300 tokens"),
        (Muted, "recurrence", "same output when y is exchanged"),
        (Length, "length", "outputs of 1 tokens equal to the first 1 of 20"),
        (Future, "causality", "outputs before token 1"),
        (FutureGradient, "causality", "no gradient from tokens before 1"),
        (Batch, "batch", "each sample as if alone"),
        (Unreached, "gradient", "reaches spare.*got a gradient that is none"),
        (Detached, "gradient", "reaches weight.*all zero"),
        (NaNGradient, "gradient", "not finite"),
        (Backward, "gradient", "the gradient of input equal to the recurrence's"),
        (LongBackward, "gradient", "the gradient of input equal to the recurrence's"),
        (LongLength, "length", "outputs of 1 tokens equal to the first 1 of 300"),
        (NoRecurrence, "gradient", "the gradient of input equal to a finite difference"),
        (Stateless, "state size", "None without a recurrence.*got 3"),
    ],
)
def test_each_fault_is_found_and_named(broken, check, message):
    with pytest.raises(InputError, match=message) as error:
        check_mixer(broken())
    assert re.search(rf"\(?check '{check}'", str(error.value))


def test_axes_that_broadcast_to_other_samples_are_refused():
    broken = Axes()
    broken.forward = lambda x: x
    with pytest.raises(InputError, match=r"parts broadcastable to \(3, 20, channel, state\)"):
        check_mixer(broken)


def test_the_size_of_the_error_is_said():
    with pytest.raises(InputError, match=r"relative error of 1e-06 .*; got an error of \d\.\de-0[56];"):
        check_mixer(Unlike())


def test_the_fast_recurrence_is_held_to_the_sequential_one(monkeypatch):
    monkeypatch.setattr("repflow.mixers.check.fast_recurrence", lambda parts: 1.001 * fast_recurrence(parts))
    with pytest.raises(InputError, match=r"check 'fast recurrence'.*got an error of 0.001"):
        check_mixer(Average())


def test_a_preference_around_the_check_does_not_blunt_it():
    with prefer("reference"), pytest.raises(InputError, match="check 'recurrence'"):
        check_mixer(PreferredUnlike())


class PreferredUnlike(Unlike):
    """Wrong in its fast form alone."""

    def forward(self, x):
        return self.by_recurrence(x) if self.reference_wanted("chunked", "") else super().forward(x)


def test_the_mixer_stays_as_it_is():
    mixer = build("gla", 8).train()
    before = {name: value.clone() for name, value in mixer.state_dict().items()}
    check_mixer(mixer)
    assert mixer.training
    for name, value in mixer.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == torch.float32
    assert all(parameter.grad is None for parameter in mixer.parameters())


def test_zeros_at_initialisation_hide_nothing():
    mixer = build("linear_attention", 8)
    nn.init.zeros_(mixer.o_proj.weight)
    check_mixer(mixer)
    with pytest.raises(InputError, match="the same output when y is exchanged between samples"):
        check_mixer(mixer, noise=0.0)


def test_seeds_give_other_inputs_and_the_same_seed_the_same():
    first, again, other = (check_mixer(build_still(), seed=seed).errors for seed in (1, 1, 2))
    assert first == again
    assert first != other


def build_still():
    torch.manual_seed(0)
    return build("gla", 8)


def test_wrong_requests_teach():
    with pytest.raises(InputError, match=r"a repflow.mixers.Mixer; got Linear"):
        inspect.unwrap(check_mixer)(nn.Linear(2, 2))  # without the test run's own type check
    with pytest.raises(InputError, match=r"at least 2 samples, 3 tokens.*got batch=1"):
        check_mixer(Average(), batch=1)
