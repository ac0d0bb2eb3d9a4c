"""FlowMeter: how representations flow through a model in training, every k steps, without any effect on the training.

What a reading must leave as it was: weights and buffers, the random generators, the mode of every module, torch's
gradient mode and autocast, caches, and the compiled graphs. It runs on a copy of the modules that shares the tensors
(`unwrap`), in inference mode, in eval mode, outside autocast's cache, with the generators put back.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from repflow.capture.provenance import machine, model_facts
from repflow.core.errors import InputError, UnsupportedModelError, teach, words_of
from repflow.core.results import Finding, Result
from repflow.metrics.meter import Table
from repflow.models import Model
from repflow.models.devices import require_dtype, resolve_dtype
from repflow.models.weights import nonfinite
from repflow.spec.request import check_least
from repflow.store.name import check_name, safe_name
from repflow.training.flow.history import STUDY, FlowHistory, HistoryFolder, scalars
from repflow.training.flow.prompts import flow_prompts
from repflow.training.flow.reading import NONFINITE, Reading, known_metrics, named_metrics
from repflow.training.flow.unwrap import reading_copy, shares_tensors, unwrapped
from repflow.training.random_state import own_random_state

LOG = logging.getLogger("repflow.training")
PREFIX = "flow/"
PATIENCE = 3
"""Readings that may fail in a row before the meter is switched off."""


class FlowMeter:
    """Reads a model on fixed prompts every few steps of any PyTorch loop.

    Whatever goes wrong is reported once, on the logger `repflow.training` and as a finding of the history; the
    training goes on. Only what is wrong with the call itself (`every`, names of metrics and runs) raises, at once.

    Args:
        model: the model in training: a transformers model, or what DistributedDataParallel, torch.compile, accelerate,
            PEFT or Lightning have put around one. Of several processes the first reads.
        prompts: texts, token ids (batch, token), the name of a task (`random`, `recall`, `kvpr`, `FILE.jsonl`) or
            Prompts.
        every: steps between readings.
        metrics: names of the catalogue, registered ones, functions of hidden (state, token, width),
            `influence_half_life`, `probe_accuracy`; `default` stands for the default ones.
        tokenizer: for texts; by default that of the folder the model was loaded from.
        labels: classes of the prompts, for `probe_accuracy`; by default those of the task.
        length: tokens of a task's prompts, 128 by default; texts and ids are cut to it where it is given.
        samples: number of prompts, 8 of a task by default; of texts and ids the first `samples`.
        seed: of a task's prompts and of the probe's split.
        autocast: `bfloat16` or `float16` to read under autocast as the training computes; by default in the precision
            of the weights.
        out: folder of runs to store the history in; None stores nothing.
        name: of the run; by default from model and prompts.
        on_error: `report`, or `raise` for tests.

    Attributes:
        findings: what a reader should know.
        last: what the last reading returned.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=16, n_positions=8))
    >>> meter = FlowMeter(model, [[1, 2, 3, 4], [5, 6, 7, 8]], every=10, out=None)
    >>> [sorted(meter.step(step))[:2] for step in (9, 10)]
    [[], ['flow/layer_cosine', 'flow/layer_cosine_last']]
    >>> meter.result()["token_similarity"].shape
    (1, 3, 2)
    """

    def __init__(
        self,
        model: Any,
        prompts: Any,
        every: int = 50,
        *,
        metrics: Sequence[str | Callable[..., Any]] | str = "default",
        tokenizer: Any = None,
        labels: Sequence[int] | None = None,
        length: int | None = None,
        samples: int | None = None,
        seed: int = 0,
        autocast: str | None = None,
        out: str | Path | None = "runs",
        name: str | None = None,
        on_error: str = "report",
    ) -> None:
        check_least([("every", every, 1)])
        if on_error not in ("report", "raise") or autocast not in (None, "bfloat16", "float16"):
            expected = "on_error report or raise, autocast None, bfloat16 or float16"
            raise InputError(teach(expected, f"{on_error!r} and {autocast!r}", "leave them out"))
        if name is not None:
            check_name(name)
        self.every, self._asked = every, known_metrics(metrics)
        self.metrics: tuple[str, ...] = ()
        self.findings: list[Finding] = []
        self.last: dict[str, float] = {}
        self._module, self._prompts, self._tokenizer, self._labels = model, prompts, tokenizer, labels
        self._size: dict[str, Any] = {"length": length, "samples": samples, "seed": seed}
        self._autocast = None if autocast is None else resolve_dtype(autocast)
        self._out, self._name, self._raise = None if out is None else Path(out), name, on_error == "raise"
        self._calls = self._failures = 0
        self._said: set[str] = set()
        self._reading: Reading | None = None
        self._folder: HistoryFolder | None = None
        self.history: FlowHistory | None = None
        self._reads = first_process()
        if self._reads:
            with self._reporting("the meter cannot read this model, so that nothing is measured"):
                self._prepare()
            self._reads = self._reading is not None

    # ---------------------------------------------------------------- readings
    def step(self, step: int | None = None) -> dict[str, float]:
        """Call after every step of the optimiser; reads where the step is a multiple of `every`.

        Args:
            step: steps done so far; by default the meter counts its own calls.

        Returns:
            Numbers by name, to be logged: `flow/METRIC`, the mean over prompts and depth, and `flow/METRIC_last`, of
            the last state. Empty where nothing was read.
        """
        self._calls += 1
        at = self._calls if step is None else int(step)
        return self.measure(at) if at % self.every == 0 else {}

    def measure(self, step: int) -> dict[str, float]:
        """Read now, whatever `every` says; a step that was read already gives nothing."""
        if not self._reads or (self.history is not None and self.history.steps[-1:] == [step]):
            return {}
        table: Table = {}
        with self._reporting(f"the reading at step {step} failed", step):
            table = self._read()
        if not table:
            self._failures += 1
            self._reads = self._failures < PATIENCE
            return {}
        self._failures = 0
        self._look_for_nonfinite(step)
        self._keep(step, table)
        self.last = scalars(table, PREFIX)
        return dict(self.last)

    def result(self) -> Result:
        """The history so far, arrays with the axis `step` first.

        Raises:
            InputError: Nothing was read, with the reason.
        """
        if self.history is None or not self.history.steps:
            reasons = "; ".join(finding.message for finding in self.findings) or "no step has been read yet"
            raise InputError(teach("a meter that has read something", reasons, "call step() in the training loop"))
        return self.history.result()

    def close(self, step: int | None = None) -> None:
        """Store the whole history as finished; a last reading is made where a step is given that was not read yet."""
        if step is not None:
            self.measure(step)
        folder, self._folder = self._folder, None
        if folder is not None and self.history is not None:
            self._ending.detach()
            with self._reporting("the history's end could not be stored"):
                folder.close(self.history)
        self._reads = False

    @property
    def path(self) -> Path | None:
        """Folder of the stored history; None while there is none."""
        return None if self._folder is None else self._folder.run.path

    # ---------------------------------------------------------------- inside
    def _prepare(self) -> None:
        """Copy the model's modules, make the prompts, and see that reading changes nothing."""
        self._network = unwrapped(self._module)
        if self._autocast is not None:
            require_dtype(self._autocast, self._network.device)
        buffers = [(name, buffer, buffer.clone()) for name, buffer in self._network.named_buffers()]
        with self._undisturbed():
            model = reading_copy(self._network, self._tokenizer)
            prompts = flow_prompts(model, self._prompts, **self._size)
            self.metrics = named_metrics(self._asked)
            self._reading = Reading(model, prompts, self.metrics, self._labels, self._size["seed"])
        changed = [name for name, buffer, before in buffers if not _same_bits(buffer, before)]
        if changed:
            for _, buffer, before in buffers:
                buffer.copy_(before)
            self._reading = None
            remedy = "watch it by its checkpoints: `repflow compare FOLDER`"
            got = f"one that changes its {changed[0]} in eval mode"
            raise UnsupportedModelError(teach("a model that a pass leaves as it was", got, remedy))
        self.findings += model.findings
        self.history = FlowHistory(self._config(model), self._provenance(model), self.findings)

    def _config(self, model: Model) -> dict[str, Any]:
        assert self._reading is not None
        prompts = self._reading.prompts
        return {
            "study": STUDY,
            "model": model.spec,
            "task": prompts.task,
            "length": max(prompts.lengths),
            "prompts": len(prompts),
            "every": self.every,
            "metrics": list(self.metrics),
            "states": "residual",
            "autocast": None if self._autocast is None else str(self._autocast).removeprefix("torch."),
        }

    def _provenance(self, model: Model) -> dict[str, Any]:
        assert self._reading is not None
        dtype = str(model.dtype).removeprefix("torch.")
        digests = {"prompts": self._reading.prompts.digest()}
        return {**machine(str(model.device)), "dtype": dtype, "digests": digests, "model": model_facts(model)}

    def _read(self) -> Table:
        assert self._reading is not None
        with self._undisturbed():
            if not shares_tensors(self._network, self._reading.model):  # resized, merged, cast: copy its modules again
                self._reading.model = reading_copy(self._network, self._reading.model.tokenizer)
            return self._reading.table()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Random generators, gradient mode and autocast, with its cache of cast weights, are as before afterwards."""
        kind = self._network.device.type
        with ExitStack() as stack:
            stack.enter_context(own_random_state())
            stack.enter_context(torch.no_grad())
            # a weight that autocast kept from inference mode could not be trained with: nothing is kept
            on = self._autocast is not None
            stack.enter_context(torch.autocast(kind, dtype=self._autocast, enabled=on, cache_enabled=False))
            yield

    def _look_for_nonfinite(self, step: int) -> None:
        """A state that is not finite is a finding, with the step and where the weights are at fault with their name."""
        assert self._reading is not None
        model, state = self._reading.model, self._reading.bad_state
        if state is None or any(finding.code == NONFINITE for finding in self.findings):
            return
        weights = nonfinite.scan(model.network, model.blocks)
        why = f", as {weights[0].parameter} holds {weights[0].count} values that are not" if weights else ""
        remedy = "lower the rate, clip the gradient or look at the batches before it"
        message = f"step {step}: state {state} is not finite{why}; {remedy}"
        self.findings.append(Finding(NONFINITE, state, message))
        self._say(message)

    def _keep(self, step: int, table: Table) -> None:
        assert self.history is not None
        if self._out is not None and self._folder is None:
            with self._storing():
                self._folder = HistoryFolder(self._out, self._run_name(), self.history, step)
                self._ending = weakref.finalize(self, _end, self._folder, self.history)
        self.history.add(step, table)
        if self._folder is not None:
            with self._storing():
                self._folder.write(self.history, step, table)

    def _run_name(self) -> str:
        assert self._reading is not None
        return self._name or safe_name(f"{self._reading.model.name}-{STUDY}-{Path(self._reading.prompts.task).stem}")

    # ---------------------------------------------------------------- what goes wrong
    @contextmanager
    def _storing(self) -> Iterator[None]:
        """What cannot be written is reported; readings go on in memory."""
        before = len(self.findings)
        with self._reporting("the history cannot be stored and stays in memory"):
            yield
        if len(self.findings) > before:
            self._out, folder, self._folder = None, self._folder, None
            if folder is not None:
                self._ending.detach()
                folder.run.close()

    @contextmanager
    def _reporting(self, what: str, step: int | None = None) -> Iterator[None]:
        """Errors inside become one message and a finding; KeyboardInterrupt and other exits pass."""
        try:
            yield
        except Exception as error:
            if self._raise:
                raise
            message = f"{what}: {words_of(error)}; the training goes on"
            kind = type(error).__name__ + str(error)[:60]
            if kind not in self._said:
                self._said.add(kind)
                self.findings.append(Finding("meter_failed", None, message))
                self._say(message)

    def _say(self, message: str) -> None:
        LOG.warning("repflow: %s", message)


def _end(folder: HistoryFolder, history: FlowHistory) -> None:
    """At the end of the process, or of the meter: the whole history is stored, if it can be."""
    try:
        folder.close(history)
    except Exception as error:  # noqa: BLE001  nobody is left to handle it
        LOG.warning("repflow: the history's end could not be stored: %s", words_of(error))


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def first_process() -> bool:
    """Whether this process is the first of a distributed training, or the only one."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
