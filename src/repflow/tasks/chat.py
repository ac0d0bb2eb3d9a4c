"""Prompts inside a model's chat template, for instruct models."""

from __future__ import annotations

from repflow.errors import InputError, teach
from repflow.tasks.prompt import Encoder

DAY = "1 January 2025"
"""Some templates write today's date into the prompt, which would make a run depend on the day."""


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
        made = self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True, date_string=DAY)
        return str(made)

    @property
    def begins(self) -> bool:
        """Whether prompts begin with the beginning-of-sequence token."""
        return bool(self.prefix) or self._written
