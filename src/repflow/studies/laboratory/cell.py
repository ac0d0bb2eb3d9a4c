"""A cell of a grid: one model to train, written as its fields with colons between them; no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar, get_type_hints

from repflow.core.errors import InputError, teach

S = TypeVar("S", bound="Cell")


def axis(option: str) -> Any:
    """A field of a cell, and the option that lists its values."""
    return field(metadata={"option": option})


@dataclass(frozen=True)
class Cell:
    """One model to train. A laboratory adds its own fields; `rate` and `seed` are always among them.

        @dataclass(frozen=True)
        class TowerCell(Cell):
            example = "s6:2:0.002:3"
            mixer: str = axis("mixers")
            layers: int = axis("layers")
            rate: float = axis("rates")
            seed: int = axis("seeds")

    Attributes:
        example: a cell as it is written, for messages.
        order: options in the order in which the grid goes through them, the last one fastest; the fields' order if
            left out.
    """

    example: ClassVar[str] = ""
    order: ClassVar[tuple[str, ...]] = ()

    def __str__(self) -> str:
        return ":".join(_written(value) for value in self.values().values())

    def values(self) -> dict[str, Any]:
        """Fields by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @property
    def variant(self) -> tuple[Any, ...]:
        """What it is without rate and seed: cells of one variant have one shape."""
        return tuple(value for name, value in self.values().items() if name not in ("rate", "seed"))

    @classmethod
    def options(cls) -> dict[str, str]:
        """The option that lists the values of each field."""
        return {entry.name: entry.metadata["option"] for entry in fields(cls)}

    @classmethod
    def kinds(cls) -> dict[str, type]:
        """Types of the fields."""
        hints = get_type_hints(cls)
        return {entry.name: hints[entry.name] for entry in fields(cls)}

    @classmethod
    def parse(cls: type[S], word: str) -> S:
        """Read `str(cell)`."""
        kinds, parts = cls.kinds(), word.split(":")
        try:
            if len(parts) != len(kinds):
                raise ValueError
            return cls(*(kind(part) for kind, part in zip(kinds.values(), parts, strict=True)))
        except ValueError:
            expected = f"a cell as {':'.join(kinds).upper()}"
            raise InputError(teach(expected, repr(word), f"write {cls.example}")) from None


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
