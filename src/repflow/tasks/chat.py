"""Prompts inside a model's chat template, for instruct models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from repflow.core.errors import InputError, refusing, teach
from repflow.tasks.prompt import Encoder

DAY = "1 January 2025"
"""Some templates write today's date into the prompt, which would make a run depend on the day."""


STEPS = 1_000_000
"""Lines of a template's compiled code that may run for one prompt; the longest published ones run some thousands."""
TEMPLATE = "<template>"
"""Name under which jinja2 compiles."""


@contextmanager
def bounded_steps(most: int = STEPS) -> Iterator[None]:
    """Stop a template that loops without end: it comes with the model, and jinja's sandbox bounds no time."""
    before, left = sys.gettrace(), [most]

    def line(frame: FrameType, event: str, _: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise ValueError(f"more than {most:,} steps, perhaps without end")
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename == TEMPLATE else None

    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)


class ChatEncoder(Encoder):
    """Puts each text as the user's turn into the tokenizer's chat template, up to where the model's answer begins.

    A template mostly writes the first token itself; then none is added.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.tokenizer, self.limit = encoder.tokenizer, encoder.limit
        self._numbers, self._words = {}, {}
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError(
                teach(
                    "a tokenizer with a chat template for --chat-template",
                    "one without",
                    "leave --chat-template out, or name an instruct model",
                )
            )
        begins = self.text_ids(self.render("a"))[: len(encoder.prefix)] == list(encoder.prefix)
        self.prefix = () if begins else encoder.prefix
        self._written = bool(encoder.prefix) and begins

    def render(self, text: str) -> str:
        """The text as one turn of a conversation."""
        turn = [{"role": "user", "content": text}]
        options = {"tokenize": False, "add_generation_prompt": True, "date_string": DAY}
        remedy = "leave --chat-template out, or pass --tokenizer FOLDER with a repaired one"
        with refusing("a chat template that renders one user's turn", "that of the tokenizer", remedy), bounded_steps():
            return str(self.tokenizer.apply_chat_template(turn, **options))

    @property
    def begins(self) -> bool:
        """Whether prompts begin with the beginning-of-sequence token."""
        return bool(self.prefix) or self._written
