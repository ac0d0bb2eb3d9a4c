"""The training loop: any batches, any model, resumable after `kill -9` with the same bits.

At every step: train, callbacks, log. At an evaluation: callbacks, log. Then, where it is due, a checkpoint of all that
decides what follows, and how long the log was. A training that resumes cuts the log to that length and goes on: its
weights and its log are those of one that never stopped (on a CPU; on a GPU in the deterministic mode).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repflow.core.errors import DamagedRunError, DivergedError, InputError, teach, words_of
from repflow.core.results import Finding
from repflow.mixers.reorder import NonFiniteScoreError, Reordered, check_span
from repflow.models.devices import resolve_device
from repflow.training import snapshot
from repflow.training.ahead import ahead
from repflow.training.batch import Batch, BatchSource
from repflow.training.callback import Callback, Moment, overrides, undisturbed
from repflow.training.checkpoint import TrainingFolder
from repflow.training.config import TrainingConfig
from repflow.training.history import History
from repflow.training.identity import training_identity, versions
from repflow.training.log import AGAIN, Log
from repflow.training.losses import CrossEntropy, Loss, Stateful
from repflow.training.random_state import deterministic, own_random_state, seed_all
from repflow.training.run import TrainingRun
from repflow.training.step import Stepper

CHECK = 50
"""Steps between looks at the clock, where time is bounded."""
LOOKED = 16
"""Batches among which one must be longer than a chunk."""
TIME, DIVERGED = "time", "nonfinite"

Within = Callable[[Any], AbstractContextManager[Any]]


def train(
    network: nn.Module,
    source: BatchSource,
    config: TrainingConfig,
    *,
    loss: Loss | None = None,
    folder: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    within: Within | None = None,
    say: Callable[[str], None] | None = None,
) -> TrainingRun:
    """Train a model in place.

    The same call with the same folder goes on where an earlier one was stopped, and only reads a finished one.

    Args:
        network: a stack, a model of transformers, or any module whose output is logits or has them; it is moved to the
            device of the config.
        source: gives the batch of every step.
        config: how to train.
        loss: by default cross entropy: of the next token, or of the batches' targets.
        folder: of checkpoints and log; None stores nothing.
        callbacks: look at the model on the way, in this order.
        within: context of a network in which steps run, such as faster kernels; it is left while models are evaluated.
        say: is given a line at every line of the log.

    Raises:
        ConfigChangedError: The folder holds another training; names the first key that differs.
        DamagedRunError: The folder's checkpoint or log was changed.
        DivergedError: The loss is not finite, with `nonfinite="raise"`.
        InputError: The model sorts chunks of tokens that no row of the first batches is longer than.
    """
    check_chunks(network, source, config.steps)
    device = resolve_device(config.device)
    network.to(device)
    objective: Loss = CrossEntropy() if loss is None else loss
    with ExitStack() as stack:
        stack.enter_context(own_random_state())
        stack.enter_context(deterministic(config.deterministic))
        stack.enter_context(_train_mode(network))
        place = None
        identity = training_identity(network, source, objective, config, device)
        if folder is not None:
            place = stack.enter_context(TrainingFolder(Path(folder), identity, versions()))
        stepper = Stepper(network, objective, config, device)
        return Loop(stepper, source, identity, place, list(callbacks), within or nullcontext, say).run()


def check_chunks(network: nn.Module, source: BatchSource, steps: int) -> None:
    """Refuse to train a model on rows too short for its chunks: it would be one that reorders nothing.

    Shorter rows can be read by a model, and by a training beside longer ones.
    """
    stacks = getattr(network, "networks", (network,))  # of replicas, whose stacks are not their modules
    parts = [part for stack in stacks for part in stack.modules() if isinstance(part, Reordered)]
    orders = [part.order for part in parts if part.order.form == "chunks"]
    chunk = max((order.chunk for order in orders), default=0)
    longest = 0
    for step in range(min(steps, LOOKED) if orders else 0):
        longest = max(longest, source.batch(step).inputs.shape[1])
        if longest > chunk:
            return
    if longest:
        check_span({"chunk": chunk}, longest)


@contextmanager
def _train_mode(network: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in network.modules()]
    network.train()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class Loop:
    """One call of `train`."""

    def __init__(
        self,
        stepper: Stepper,
        source: BatchSource,
        identity: dict[str, Any],
        place: TrainingFolder | None,
        callbacks: list[Callback],
        within: Within,
        say: Callable[[str], None] | None,
    ) -> None:
        self.stepper, self.source, self.identity, self.place = stepper, source, identity, place
        self.callbacks, self.within, self.say = callbacks, within, say
        self.network, self.config, self.device = stepper.network, stepper.config, stepper.device
        self.history = History(self.config.steps, self.device)
        self.log = Log() if place is None else place.log
        self.done = self.tokens = self._checked = self._from = 0
        self.stopped: str | None = None
        self.findings: list[Finding] = []
        self._nonfinite: tuple[int, str] | None = None
        self._earlier = 0.0
        self._evaluated = -1
        self._by_step = [callback for callback in callbacks if overrides(callback, "on_step")]
        self._began = self._since = time.perf_counter()
        self._counted = 0

    def run(self) -> TrainingRun:
        """Resume, train, finish."""
        seed_all(self.config.seed)
        finished, resumed = self._resume()
        if not finished:
            if self.done in self.config.evaluations() and self._evaluated != self.done:
                self._evaluate()
            self._train()
            self._finish()
        rows = self.history.rows()
        return TrainingRun(
            steps=self.done,
            history={name: rows[:, place].copy() for place, name in enumerate(self.history.names)},
            log=self.log.entries,
            seconds=self._seconds(),
            tokens=self.tokens,
            stopped=self.stopped,
            findings=tuple(self.findings),
            resumed_from=resumed,
            graph=self.stepper.recorded,
            identity=self.identity,
            folder=None if self.place is None else self.place.path,
        )

    # ---------------------------------------------------------------- steps
    def _train(self) -> None:
        stops = sorted(self.config.evaluations())
        while self.done < self.config.steps and self.stopped is None:
            stop = next(stop for stop in stops if stop > self.done)
            with self.within(self.network):
                self._steps_until(stop)
            if self.done == stop and self.stopped is None:
                self._evaluate()
                self._checkpoint_if_due()

    def _steps_until(self, stop: int) -> None:
        with closing(ahead(self.source.batch, range(self.done, stop), self.config.ahead)) as batches:
            for batch in batches:
                self._step(batch)
                if self.stopped is not None:
                    return
                if self.done < stop:  # at the stop itself the evaluation comes first
                    self._checkpoint_if_due()

    def _step(self, batch: Batch) -> None:
        try:
            parts = self.stepper.step(self.done, batch)
        except NonFiniteScoreError:
            if not self.done:  # nothing was trained that could have diverged
                raise
            parts = torch.full((len(self.history.names),), torch.nan)  # the loss that a GPU would have given
        self.history.keep(parts, self.stepper.names)
        self.done += 1
        self.tokens += batch.token_count
        self._counted += batch.token_count
        if self.device.type == "cpu":  # where nothing has to be waited for, no further step is taken
            self._check_finite()
        if self._by_step and self.stopped is None:
            self._call(self._by_step, "on_step", "callback")
        if self.done % self.config.log_every == 0 or self.done == self.config.steps:
            self._log_steps()
        if self.config.seconds is not None and self.done % CHECK == 0 and self.done < self.config.steps:
            self._wait()
            if time.perf_counter() - self._began > self.config.seconds:
                self.stopped = self.stopped or TIME

    def _log_steps(self) -> None:
        """A line with the means since the last one; its bounds do not depend on resumptions."""
        self._check_finite()
        start = (self.done - 1) // self.config.log_every * self.config.log_every
        values = self.history.mean(start, self.done) | {"rate": self.config.rate(self.done - 1)}
        values["tokens_per_second"] = self._counted / max(time.perf_counter() - self._since, 1e-9)
        self.log.write("step", self.done, values)
        self._restart_clock()
        if self.say is not None:
            each = (self._seconds() - self._earlier) / (self.done - self._from)
            left = (self.config.steps - self.done) * each
            numbers = ", ".join(f"{name} {values[name]:.4g}" for name in self.history.names)
            self.say(f"step {self.done}: {numbers}; {values['tokens_per_second']:,.0f} tokens/s, {left:.0f} s left")

    def _check_finite(self) -> None:
        """Look at the steps since the last look; what is not finite is never passed over."""
        first = None if self._nonfinite else self.history.first_nonfinite(self._checked, self.done)
        self._checked = self.done
        if first is None:
            return
        self._nonfinite = (first[0] + 1, first[1])
        step, name = self._nonfinite
        self.log.write(DIVERGED, step, {"what": name})
        self._report_nonfinite()
        if self.config.nonfinite == "raise":
            raise DivergedError(self.findings[-1].message)
        if self.config.nonfinite == "stop":
            self.stopped = DIVERGED

    def _report_nonfinite(self) -> None:
        assert self._nonfinite is not None
        step, name = self._nonfinite
        remedy = "lower the rate, clip the gradient or look at the batch"
        where = "" if self.place is None or self.config.nonfinite == "report" else f"; {self._kept()}"
        message = f"the {name.replace('_', ' ')} of step {step} is not finite{where}; {remedy}"
        self.findings.append(Finding("nonfinite_loss", None, message))
        if self.say is not None:
            self.say(message)

    # ---------------------------------------------------------------- callbacks
    def _evaluate(self, *, last: bool = False) -> None:
        self._check_finite()
        if self.stopped == DIVERGED:
            return
        self._evaluated = self.done
        self._call(self.callbacks, "on_evaluate", "evaluate", last=last or self.done == self.config.steps)
        self._restart_clock()

    def _call(self, callbacks: Sequence[Callback], method: str, kind: str, *, last: bool = False) -> None:
        """Call a method of each, and log what they return as one line."""
        values: dict[str, float] = {}
        folder = None if self.place is None else self.place.path
        moment = Moment(self.network, self.done, self.config, self.history, self.device, folder, last)
        for callback in callbacks:
            try:
                with undisturbed(self.network):
                    returned = getattr(callback, method)(moment) or {}
            except Exception as error:
                where = f"at step {self.done}, in {method} of the callback {callback.name}"
                error.add_note(f"training ended {where}; {self._kept()}")
                raise
            if twice := sorted(values.keys() & returned.keys()):
                expected = "callbacks that return different names"
                raise InputError(teach(expected, f"{twice[0]!r} from {callback.name} and one before it", "rename one"))
            values |= {name: float(value) for name, value in returned.items()}
        if values:
            self.log.write(kind, self.done, values)
        self.stopped = self.stopped or moment.stopped

    # ---------------------------------------------------------------- end, checkpoints
    def _finish(self) -> None:
        """The last evaluation; a training that ran out of time goes on from before it."""
        self._check_finite()
        if self.stopped == TIME:
            self._checkpoint()
        if self._evaluated != self.done:
            self._evaluate(last=True)
        self._call(self.callbacks, "on_end", "end_metrics", last=True)
        self.log.write("end", self.done, {"stopped": self.stopped})
        if self.stopped not in (TIME, DIVERGED):
            self._checkpoint(done=True)
        for words in self.stepper.notes:
            self.findings.append(Finding("no_cuda_graph", None, words))
            if self.say is not None:
                self.say(words)

    def _checkpoint_if_due(self) -> None:
        if self.done % self.config.checkpoint_every == 0 and self.done < self.config.steps and self.stopped is None:
            self._checkpoint()
            self._restart_clock()

    def _checkpoint(self, *, done: bool = False) -> None:
        if self.place is None:
            return
        self._check_finite()
        if self.stopped == DIVERGED:
            return
        facts = {
            "step": self.done,
            "evaluated": self._evaluated,
            "names": list(self.history.names),
            "seconds": self._seconds(),
            "tokens": self.tokens,
            "stopped": self.stopped if done else None,
            "nonfinite": self._nonfinite,
            "callbacks": {callback.name: state for callback in self.callbacks if (state := callback.state())},
            "loss": self.stepper.loss.state() if isinstance(self.stepper.loss, Stateful) else {},
        }
        tensors = snapshot.take(self.network, None if done else self.stepper.optimiser, self.history)
        self.place.save(tensors, facts, done=done)

    def _resume(self) -> tuple[bool, int | None]:
        """Go on from the folder's checkpoint; whether the training was finished, and the step of the checkpoint."""
        tensors = None if self.place is None else self.place.load()
        if self.place is None or tensors is None:
            return False, None
        record = self.place.record
        optimiser = None if record["done"] else self.stepper.optimiser
        try:
            snapshot.put_back(tensors, self.network, optimiser, self.history, tuple(record["names"]))
            if self.history.done != record["step"]:
                raise ValueError(f"{self.history.done} steps of {record['step']}")
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            got = f"none of the name {error}" if isinstance(error, KeyError) else words_of(error)
            raise DamagedRunError(teach(f"the model's tensors in {self.place.path}", got, AGAIN)) from None
        self.done = self._checked = record["step"]
        self.tokens, self._earlier, self.stopped = record["tokens"], record["seconds"], record["stopped"]
        if record["nonfinite"] is not None:
            self._nonfinite = (record["nonfinite"][0], record["nonfinite"][1])
            self._report_nonfinite()
        for callback in self.callbacks:
            if callback.name in record["callbacks"]:
                callback.restore(record["callbacks"][callback.name])
        if isinstance(self.stepper.loss, Stateful):
            self.stepper.loss.restore(record.get("loss", {}))
        if record["versions"] != versions():
            message = f"resumed with other versions: {versions()}, begun with {record['versions']}"
            self.findings.append(Finding("resumed", None, message))
        self._evaluated, self._from = record["evaluated"], self.done
        return record["done"], record["step"]

    def _kept(self) -> str:
        step = 0 if self.place is None else self.place.record["step"]
        return f"the checkpoint of step {step} is kept" if step else "there is no checkpoint yet"

    # ---------------------------------------------------------------- clock
    def _seconds(self) -> float:
        return self._earlier + time.perf_counter() - self._began

    def _restart_clock(self) -> None:
        self._since, self._counted = time.perf_counter(), 0

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
