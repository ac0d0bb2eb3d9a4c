"""What long work calls to say how far it is, below the studies, whose own `Progress` also counts tokens."""

from __future__ import annotations

from collections.abc import Callable

Steps = Callable[[int, int], None]
"""Called with what is done and what there is in total."""
