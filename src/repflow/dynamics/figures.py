"""Parameters of paper 3's Figures 3 to 6, as printed (captions, and the list of appendix C)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Panel:
    """One system that a figure draws.

    Attributes:
        name: how we call it.
        source: where its parameters are printed.
        x0: (token,) or (token, dim).
        io: S_Cᵀ S_B, a number or a matrix.
        s_delta: a number or a matrix.
        a: as printed, which may be negative.
        until: time to which it is drawn.
    """

    name: str
    source: str
    x0: tuple[float, ...] | Matrix
    io: float | Matrix
    s_delta: float | Matrix
    a: float
    until: float

    @property
    def vectors(self) -> bool:
        """Whether tokens have more than one dimension."""
        return isinstance(self.io, tuple)

    def parameters(self, *, printed_sign: bool = False) -> dict[str, Any]:
        """Arguments of `simulate` or `simulate_nd`, with |a| unless the printed sign is requested."""
        a = self.a if printed_sign else abs(self.a)
        return {"x0": self.x0, "io_matrix" if self.vectors else "mu": self.io, "s_delta": self.s_delta, "a": a}


FIGURES: dict[str, tuple[Panel, ...]] = {
    "dynamics-fig3": (
        Panel(
            "convergence", "Figure 3", (-1.79, -0.34, 0.46, -1.25, 0.83, -0.83, 1.81, -1.16, 0.13, -0.19),
            -1.58, -0.17, -1.08, 1e12,
        ),
    ),
    "dynamics-fig4": (
        Panel(
            "slow-divergence", "Figure 4", (1.55, 2.84, 3.81, 4.57, 5.99, 6.94, 7.71, 8.96, 9.59, 10.75),
            1.79, -0.71, -1.80, 1e12,
        ),
    ),
    "dynamics-fig5": (
        Panel(
            "fast-divergence", "Figure 5", (0.83, 0.91, 0.64, 0.78, 0.66, 0.99, 0.68, 0.72, 0.61, 0.90),
            0.76, 0.59, 1.66, 1.0,
        ),
    ),
    "dynamics-fig6": (
        Panel(
            "negative", "appendix C, “Figure 6A”",
            ((-1.47982, -0.228103), (-0.406453, 1.24415), (1.8491, -0.625385), (1.26989, -1.91216)),
            ((-0.552679, -0.843293), (0.869146, -0.967042)), ((0.287585, 0.99662), (-0.201208, -0.964587)),
            0.370332, 1e6,
        ),
        Panel(
            "mixed", "appendix C, “Figure 6B”",
            ((1.39902, 1.60628), (-0.342366, -0.845203), (0.616744, 1.63846), (-0.185335, -1.34566)),
            ((-0.155283, 0.542694), (0.989821, 0.260748)), ((0.430263, 0.555071), (-0.654555, 0.422737)),
            0.573698, 1.0,
        ),
        Panel(
            "positive", "appendix C, “Figure 6C”",
            ((1.1932, -0.702409), (-1.49159, -0.735305), (1.21287, -0.816296), (-0.462258, 1.44549)),
            ((0.981721, -0.803219), (-0.342524, 0.605171)), ((0.653732, -0.228578), (-0.960714, -0.495344)),
            0.997408, 1.0,
        ),
    ),
}  # fmt: skip
"""Recipe → panels. Figure 6's caption calls A what the text calls C: panels go by the text's eigenvalue signs."""

EIGENVALUES = {"negative": (-0.967445, -0.552276), "mixed": (-0.741258, 0.846723), "positive": (0.190429, 1.39646)}
"""Of the symmetric part, as printed, ascending."""
