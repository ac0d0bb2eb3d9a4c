"""Tasks: what the model reads."""

from repflow.spec.length import parse_length
from repflow.spec.request import TASKS
from repflow.tasks.conformance import TaskReport, check_task
from repflow.tasks.english import english_prompts, english_texts
from repflow.tasks.make import file_prompts, id_prompts, random_prompts, text_prompts
from repflow.tasks.own import jsonl_prompts
from repflow.tasks.pixels import Images, PixelData, PixelLayout, load_images, pixel_prompts
from repflow.tasks.prompt import Encoder, Prompt, Prompts, check_fit, check_lengths
from repflow.tasks.recall import RecallRows, RecallSetting, recall_prompts, recall_rows
from repflow.tasks.retrieval import RETRIEVAL, Task, TaskOptions, make_task, matched_prompts

__all__ = [
    "RETRIEVAL",
    "TASKS",
    "Encoder",
    "Images",
    "PixelData",
    "PixelLayout",
    "Prompt",
    "Prompts",
    "RecallRows",
    "RecallSetting",
    "Task",
    "TaskOptions",
    "TaskReport",
    "check_fit",
    "check_lengths",
    "check_task",
    "english_prompts",
    "english_texts",
    "file_prompts",
    "id_prompts",
    "jsonl_prompts",
    "load_images",
    "make_task",
    "matched_prompts",
    "parse_length",
    "pixel_prompts",
    "random_prompts",
    "recall_prompts",
    "recall_rows",
    "text_prompts",
]
