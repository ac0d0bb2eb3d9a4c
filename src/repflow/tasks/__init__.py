"""Tasks: what the model reads."""

from repflow.tasks.make import TASKS, file_prompts, id_prompts, jsonl_prompts, random_prompts, text_prompts
from repflow.tasks.prompt import Encoder, Prompt, Prompts, check_fit, check_lengths

__all__ = [
    "TASKS",
    "Encoder",
    "Prompt",
    "Prompts",
    "check_fit",
    "check_lengths",
    "file_prompts",
    "id_prompts",
    "jsonl_prompts",
    "random_prompts",
    "text_prompts",
]
