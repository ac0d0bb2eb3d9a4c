"""Where the gold item goes: at a chosen index, or swept so that every class comes equally often."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from repflow.core.errors import InputError, teach
from repflow.tasks.draw import Draw, balanced

PLACE, WITHIN = 10, 11  # purposes of a Draw


@dataclass(frozen=True)
class Gold:
    """Index of the gold item in each prompt.

    Attributes:
        seed: seed of the run.
        fixed: index from 0 for all prompts; None sweeps it.
        classes: bins of relative position; None makes every index a class of its own.
    """

    seed: int
    fixed: int | None = None
    classes: int | None = None

    def count(self, items: int) -> int:
        """Number of classes with this many items."""
        return items if self.classes is None else self.classes

    def index(self, sample: int, items: int) -> int:
        """Index of the gold item.

        The class is drawn first, so that classes are balanced also where bins hold unlike numbers of indices.

        >>> sorted(Gold(seed=0).index(sample, 5) for sample in range(5))
        [0, 1, 2, 3, 4]
        """
        if self.fixed is not None:
            return min(self.fixed, items - 1)  # `check` refuses it once the number of items is known
        classes = min(self.count(items), items)
        label = balanced(self.seed, PLACE, sample, classes)
        first, past = -(-label * items // classes), -(-(label + 1) * items // classes)
        return first + (Draw(self.seed, WITHIN, sample).below(past - first) if past - first > 1 else 0)

    def label(self, index: int, items: int) -> int:
        """Class of an index: floor(index * classes / items).

        >>> [Gold(seed=0, classes=2).label(index, 5) for index in range(5)]
        [0, 0, 0, 1, 1]
        """
        return index * self.count(items) // items

    def names(self, items: int) -> tuple[str, ...]:
        """Name of each class: the index, or the bin's relative positions.

        >>> Gold(seed=0, classes=2).names(5)
        ('0-0.5', '0.5-1')
        """
        if self.classes is None:
            return tuple(map(str, range(items)))
        edges = [f"{step / self.classes:.3g}" for step in range(self.classes + 1)]
        return tuple(f"{a}-{b}" for a, b in pairwise(edges))

    def check(self, items: int, unit: str, length: int) -> None:
        """Refuse an index or a number of bins that this many items do not have."""
        where = f"{items} {unit} in {length} tokens"
        if self.fixed is not None and not 0 <= self.fixed < items:
            expected = f"an index from 0 to {items - 1} ({where})"
            raise InputError(teach(expected, str(self.fixed), "pass a smaller --index or a larger --length"))
        if self.classes is not None and not 2 <= self.classes <= items:
            expected = f"from 2 to {items} classes ({where})"
            raise InputError(teach(expected, str(self.classes), "pass other --classes or a larger --length"))
