"""What starts workers: processes here, a Ray cluster, Slurm. Claims lie underneath, so that engines may be mixed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from repflow.studies.scale.order import Order
from repflow.studies.scale.worker import Post


@dataclass(frozen=True)
class Ended:
    """A worker that has ended.

    Attributes:
        post: its post.
        lost: it was killed, or its machine was lost, so that another may take its post.
        error: what it said was wrong; empty where it was lost or had no more to do.
    """

    post: Post
    lost: bool = False
    error: str = ""


class Engine(ABC):
    """Starts workers on posts and notices when they end."""

    @abstractmethod
    def start(self, order: Order, posts: Sequence[Post]) -> None:
        """Start a worker on every post."""

    @abstractmethod
    def ended(self) -> list[Ended]:
        """Workers that have ended since the last call."""

    @abstractmethod
    def replace(self, order: Order, post: Post) -> None:
        """Start a worker in place of one that was lost."""

    @abstractmethod
    def stop(self, patience: float) -> None:
        """End all workers, which give back what they hold. Called in any case at the end.

        Args:
            patience: seconds to wait for workers that have no more to do and end by themselves.
        """
