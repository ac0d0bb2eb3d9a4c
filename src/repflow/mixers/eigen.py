"""Input and read-out maps of S6 whose product has eigenvalues of known sign (paper 3, section 5.1 and appendix D.1).

Glossary: S_B, S_C maps (state, channel) with B_t = S_B x_t, C_t = S_C x_t; L unit lower triangular (channel, rank); d
diagonal; Q orthonormal columns (channel, rank); R blocks r (cos θ, −sin θ; sin θ, cos θ).

    positive, negative, mixed        S_C = Lᵀ        S_B = diag(d) Lᵀ        S_Cᵀ S_B = L diag(d) Lᵀ
    complex                          S_C = Qᵀ        S_B = R Qᵀ              S_Cᵀ S_B = Q R Qᵀ

The first product is symmetric; by Sylvester's law of inertia its nonzero eigenvalues have the signs of d. It has rank
min(state, channel): the paper calls it definite, but with fewer states than channels (always so in Mamba) all other
eigenvalues are zero. The complex case, which the paper leaves open, is a normal matrix with eigenvalues r exp(±i θ).

The paper's code adds .7 to |d| in the positive and the negative case and nothing in the mixed one, so that its
scenarios differ in scale as well as in sign (`shift`). `norm` gives all of them, and unconstrained maps, the same
spectral norm of S_Cᵀ S_B at the start.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.option import at_least, one_of
from repflow.mixers.scan.precision import without_autocast

SIGNS = ("positive", "negative", "mixed")
SCENARIOS = (*SIGNS, "complex")
"""Values of the option `eigenvalues`; free maps have none of them."""


class ConstrainedMaps(nn.Module):
    """S_B and S_C whose product has eigenvalues of one kind.

    Attributes:
        rank: Rank of S_Cᵀ S_B, min(state, channel); states beyond it get B = C = 0.
        diagonal: Sizes of the eigenvalues before softplus, shift and sign.
        shift: What is added to softplus(diagonal).
    """

    diagonal: nn.Parameter

    def __init__(self, channels: int, state: int, shift: float) -> None:
        super().__init__()
        if not 0 <= shift < math.inf:
            remedy = "the paper's code has 0.7; the sign comes from the scenario"
            raise InputError(teach("a finite eigenvalue_shift of at least 0", str(shift), remedy))
        self.channels, self.state, self.rank, self.shift = channels, state, min(state, channels), shift

    def sizes(self) -> Tensor:
        """Sizes |d| (…,), all above the shift."""
        return functional.softplus(self.diagonal) + self.shift

    def maps(self) -> tuple[Tensor, Tensor]:
        """S_B and S_C, each (rank, channel)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """B and C (..., state) of inputs (..., channel)."""
        beyond = (0, self.state - self.rank)
        S_B, S_C = self.maps()
        return functional.pad(functional.linear(x, S_B), beyond), functional.pad(functional.linear(x, S_C), beyond)

    @torch.no_grad()
    def scale_to(self, norm: float) -> None:
        """Set the sizes, equal at the start, to where S_Cᵀ S_B has this spectral norm.

        Raises:
            InputError: The shift alone makes it larger.
        """
        size = norm * float(self.sizes().flatten()[0]) / spectral_norm(*self.maps())
        free = size - self.shift
        if not free > 0:
            expected = f"an eigenvalue_norm of more than {norm * self.shift / size:.3g}, which the shift alone gives"
            raise InputError(teach(expected, str(norm), "give a larger norm or a smaller shift"))
        self.diagonal.fill_(free + math.log(-math.expm1(-free)))  # the inverse of softplus


class SignedMaps(ConstrainedMaps):
    """S_B and S_C by an LDLᵀ factorisation.

    Attributes:
        lower: Entries of L below its diagonal of ones; the others are not read.
        sign: Of each eigenvalue.
    """

    sign: Tensor

    def __init__(self, channels: int, state: int, eigenvalues: str, shift: float = 0.0) -> None:
        super().__init__(channels, state, shift)
        one_of("eigenvalues", eigenvalues, SIGNS)
        at_least(2 if eigenvalues == "mixed" else 1, state=state, channels=channels)
        bound = channels**-0.5
        self.lower = nn.Parameter(torch.empty(channels, self.rank).uniform_(-bound, bound))
        self.diagonal = nn.Parameter(torch.zeros(self.rank))
        sign = torch.ones(self.rank)
        if eigenvalues != "positive":
            sign[0 if eigenvalues == "negative" else (self.rank + 1) // 2 :] = -1.0
        self.register_buffer("sign", sign)

    def maps(self) -> tuple[Tensor, Tensor]:
        """S_B and S_C, each (rank, channel)."""
        triangle = self.lower.tril(-1) + torch.eye(
            self.channels, self.rank, dtype=self.lower.dtype, device=self.lower.device
        )
        return (self.sign * self.sizes())[:, None] * triangle.mT, triangle.mT

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """B and C (..., state) of inputs (..., channel), by one product."""
        c = functional.linear(x, self.maps()[1])
        c = functional.pad(c, (0, self.state - self.rank))
        return c * functional.pad(self.sign * self.sizes(), (0, self.state - self.rank)), c


class RotatingMaps(ConstrainedMaps):
    """S_B and S_C with complex eigenvalues r exp(±i θ) of a normal product.

    Attributes:
        basis: A basis (channel, rank) of the space of Q, which is its orthonormal form.
        diagonal: r before softplus and shift, one per pair.
        angle: θ of each pair, drawn between 0 and π.
    """

    def __init__(self, channels: int, state: int, shift: float = 0.0) -> None:
        super().__init__(channels, state, shift)
        if self.rank < 2 or self.rank % 2:
            expected = "an even number of states and of channels, for pairs of complex eigenvalues"
            raise InputError(teach(expected, f"{state} states, {channels} channels", "add one"))
        bound = channels**-0.5
        self.basis = nn.Parameter(torch.empty(channels, self.rank).uniform_(-bound, bound))
        self.diagonal = nn.Parameter(torch.zeros(self.rank // 2))
        self.angle = nn.Parameter(math.pi * torch.rand(self.rank // 2))

    def maps(self) -> tuple[Tensor, Tensor]:
        """S_B and S_C, each (rank, channel)."""
        wide = torch.promote_types(self.basis.dtype, torch.float32)
        with without_autocast(self.basis.device):  # which would round the products, and Q would not be orthonormal
            basis = self.basis.to(wide)
            triangle, _ = torch.linalg.cholesky_ex(basis.mT @ basis)  # waits for nothing, unlike cholesky
            Q = torch.linalg.solve_triangular(triangle, basis.mT, upper=False)  # (rank, channel)
            r, one, other = self.sizes().to(wide), Q[0::2], Q[1::2]
            cos, sin = (r * self.angle.cos())[:, None], (r * self.angle.sin())[:, None]
            turned = torch.stack([cos * one - sin * other, sin * one + cos * other], 1).flatten(0, 1)
        return turned.to(self.basis.dtype), Q.to(self.basis.dtype)


def constrained_maps(channels: int, state: int, eigenvalues: str, shift: float = 0.0) -> ConstrainedMaps:
    """The maps of a scenario.

    >>> constrained_maps(8, 4, "complex").rank
    4
    """
    one_of("eigenvalues", eigenvalues, SCENARIOS)
    if eigenvalues == "complex":
        return RotatingMaps(channels, state, shift)
    return SignedMaps(channels, state, eigenvalues, shift)


def spectrum(S_B: Tensor, S_C: Tensor) -> Tensor:
    """Eigenvalues (state,) of S_Cᵀ S_B other than the zeros of rank deficiency, complex, by their real part.

    Those of S_B S_Cᵀ, a matrix of states instead of channels.

    >>> spectrum(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[-1.0, 5.0, 0.0]])).tolist()
    [(-2+0j)]
    """
    values = torch.linalg.eigvals(S_B.detach().double().cpu() @ S_C.detach().double().cpu().mT)
    return values[values.real.argsort(dim=-1, stable=True)]


def spectral_norm(S_B: Tensor, S_C: Tensor) -> float:
    """Largest singular value of S_Cᵀ S_B, from matrices of states instead of channels.

    >>> spectral_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]]))
    10.0
    """
    S_B, S_C = S_B.detach().double().cpu(), S_C.detach().double().cpu()
    squares = torch.linalg.eigvals((S_B @ S_B.mT) @ (S_C @ S_C.mT)).real
    return float(squares.max().clamp_min(0).sqrt())


def check_norm(norm: float | None) -> None:
    """Refuse a spectral norm that no maps can have."""
    if norm is not None and not 0 < norm < math.inf:
        raise InputError(teach("a finite eigenvalue_norm above 0", str(norm), "leave it out for the usual scale"))
