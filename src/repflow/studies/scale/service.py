"""What every engine has its processes do: work on an order, and say in words why it could not be done."""

from __future__ import annotations

import signal
import threading

from repflow.core.errors import DeviceLostError, RepflowError, command_line
from repflow.studies.scale.order import Order
from repflow.studies.scale.worker import Post, work

INTERRUPTED = "interrupted"
DEVICE_LOST = "lost its GPU"
"""Answers of workers whose posts others take."""


def serve(order: Order, post: Post, *, terminable: bool = True) -> str:
    """Work until nothing is left; returns "" or what went wrong.

    Args:
        order: what to do.
        post: where it stands.
        terminable: whether SIGTERM ends it, with its cell given back; it may have another meaning already.
    """
    if terminable and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
    with command_line():
        try:
            work(order, post)
        except KeyboardInterrupt:
            return INTERRUPTED
        except DeviceLostError:
            return DEVICE_LOST
        except RepflowError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  the last stop before the command that started this worker
            return f"{type(error).__name__}: {error}"
    return ""


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
