"""Train on the examples: steps, held-out losses, checkpoints, and the records of both. Every method blocks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from learner.checkpoints.arrays import SavedArrays
from learner.checkpoints.checkpoint import Checkpoints, HostState
from learner.publishing.base_file import BaseFiles
from learner.supervised.batches import Rows, held_out, most_in_a_row, plan_epoch
from learner.supervised.config import SftConfig
from learner.training.packing import Example, PackedBatch, pack_examples, share_rows
from learner.training.trainer import Trainer
from rollcast.runtime import finite_json
from rollcast.runtime.errors import CheckpointError, NotFinite
from rollcast.runtime.run_folder import RunFolder, write_atomically
from rollcast.runtime.steps_file import StepsFile

SKIPPED_IN_A_ROW_MAX = 3  # steps with a skipped update, one after the other, that end training
_REPORTED = ("loss", "grad_norm", "learning_rate", "entropy", "updates_skipped", "balance_loss", "busiest_expert_share")

Report = Callable[[Mapping[str, Any]], None]  # called with each step's line of metrics.jsonl


@dataclass(frozen=True, slots=True)
class Plan:
    """What every step trains on, and what is held out."""

    steps: Sequence[tuple[int, Rows]]  # (epoch, rows of indices) of each step
    examples: Sequence[Example]  # those that are trained on, which the indices are of
    held_out: PackedBatch | None
    row_tokens: int
    sequences_per_row: int

    @classmethod
    def of(cls, config: SftConfig, examples: Sequence[Example]) -> Plan:
        """Plan all epochs; the plan follows from the configuration and the examples."""
        data = config.data
        out = held_out(len(examples), data.held_out_share, data.held_out_max, config.seed)
        trained = [example for example, held in zip(examples, out, strict=True) if not held]
        lengths = [len(example) for example in trained]
        epochs = [
            plan_epoch(lengths, rows=config.batch_rows, row_tokens=config.row_tokens, seed=config.seed, epoch=epoch)
            for epoch in range(config.epochs)
        ]
        steps = [(epoch, rows) for epoch, batches in enumerate(epochs) for rows in batches]
        kept = [example for example, held in zip(examples, out, strict=True) if held]
        return cls(steps, trained, _together(kept, config.row_tokens), config.row_tokens, most_in_a_row(epochs))

    def batch(self, step: int) -> PackedBatch:
        """Return the batch of a step, counted from 0."""
        rows = [[self.examples[index] for index in row] for row in self.steps[step][1]]
        return pack_examples(rows, time=self.row_tokens, sequences_per_row=self.sequences_per_row)


class Session:
    """Supervised training with its run folder.

    Args:
        config: the configuration.
        plan: what each step trains on.
        trainer: the model, which begins with the parameters to train.
        checkpoints: where its state is saved.
        host: the host part of a checkpoint, at step 0; the step, hash of the base and figures are filled in.
        report: called after each step.
        stop: set to end training after the step in flight, with a checkpoint.
    """

    def __init__(
        self,
        config: SftConfig,
        plan: Plan,
        trainer: Trainer,
        checkpoints: Checkpoints,
        host: Callable[[int, str, dict[str, float]], HostState],
        report: Report,
        stop: threading.Event,
    ) -> None:
        self._config = config
        self._plan = plan
        self._trainer = trainer
        self._checkpoints = checkpoints
        self._host = host
        self._report = report
        self._stop = stop
        self._folder = RunFolder(config.run_folder)
        self._bases = BaseFiles(self._folder.base)
        self._base_hash = ""
        self._figures: dict[str, float] = {}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._saving: Future[None] | None = None
        self.step = 0

    def run(self) -> bool:
        """Resume or begin, and train until all steps are done. Return False if stopped before.

        Raises:
            CheckpointError: the run folder is of other examples or settings, or a checkpoint cannot be written.
            NotFinite: three steps in a row had a loss that is not finite.
        """
        try:
            self._begin()
            saved_s, skipped = time.monotonic(), 0
            while self.step < len(self._plan.steps) and not self._stop.is_set():
                values = self._train_step()
                skipped = skipped + 1 if values["updates_skipped"] else 0
                if skipped == SKIPPED_IN_A_ROW_MAX:
                    raise _not_finite(self.step)
                late = time.monotonic() - saved_s >= self._config.checkpoint.every_s
                if late or self.step % self._config.checkpoint.every_steps == 0:
                    self._save()
                    saved_s = time.monotonic()
            self._save()
            self._finish_save()
        finally:
            self._writer.shutdown(wait=True)
        return self.step == len(self._plan.steps)

    def _begin(self) -> None:
        def load(host: HostState, saved: SavedArrays) -> None:
            self._check(host)
            if host.base_hash:
                self._trainer.set_base(self._bases.views(host.base_hash, self._trainer.model_config))
            self._trainer.load(saved)

        restored = self._checkpoints.restore(load)
        if restored is not None:
            self.step, self._base_hash = restored.host.step, restored.host.base_hash
            self._figures = dict(restored.host.figures)
        elif self._trainer.model_config.lora is not None:
            self._base_hash = self._bases.keep(self._trainer.write_base)
        _keep_steps(self._folder.metrics, self.step)
        if restored is None:
            self._measure()

    def _check(self, host: HostState) -> None:
        expected = self._host(host.step, host.base_hash, {})
        if (host.run_id, host.model_json, bool(host.base_hash)) == (
            expected.run_id,
            expected.model_json,
            self._trainer.model_config.lora is not None,
        ):
            return
        raise CheckpointError(
            f"the checkpoint in {self._folder.root} is of other examples or settings",
            cause="its file of examples, model, seed, epochs or rows were not the configured ones",
            fix="restore them, or choose another run_folder",
        )

    def _train_step(self) -> dict[str, Any]:
        began_s = time.perf_counter()
        batch = self._plan.batch(self.step)
        nothing = np.zeros(batch.tokens.shape, np.float32)
        found = self._trainer.train_step(batch, nothing, batch.loss_mask)
        epoch = self._plan.steps[self.step][0]
        self.step += 1
        seconds = time.perf_counter() - began_s
        values: dict[str, Any] = {"step": self.step, "epoch": epoch}
        values |= {name: found[name] for name in _REPORTED if name in found}
        values["tokens"] = int(np.count_nonzero(batch.segments))
        values["tokens_trained"] = int(np.count_nonzero(batch.loss_mask))
        values["tokens_per_s"] = values["tokens"] / seconds
        if self.step % self._config.held_out_every_steps == 0 or self.step == len(self._plan.steps):
            values |= self._measure()
        with self._folder.metrics.open("a", encoding="utf-8") as file:
            file.write(finite_json.dumps(values) + "\n")
        self._figures["loss"] = float(found["loss"])
        self._report(values)
        return values

    def _measure(self) -> dict[str, float]:
        """Return the held-out loss, and keep the first, the newest and the lowest; empty if nothing is held out."""
        batch = self._plan.held_out
        if batch is None:
            return {}
        logprobs = self._trainer.current(batch).logprobs
        loss = -float(np.sum(logprobs[batch.loss_mask], dtype=np.float64) / np.count_nonzero(batch.loss_mask))
        self._figures.setdefault("held_out_loss_before", loss)
        self._figures["held_out_loss"] = loss
        self._figures["held_out_loss_min"] = min(loss, self._figures.get("held_out_loss_min", loss))
        return {"held_out_loss": loss}

    @property
    def figures(self) -> dict[str, float]:
        """Return the newest loss and the held-out losses."""
        return dict(self._figures)

    def _save(self) -> None:
        """Copy the state and write it in the background, one checkpoint at a time; nothing if it has this step."""
        self._finish_save()
        if self.step in self._checkpoints.steps():
            return
        host = self._host(self.step, self._base_hash, self._figures)
        saving = self._checkpoints.begin(host, self._trainer.begin_save)
        self._saving = self._writer.submit(saving.commit)

    def _finish_save(self) -> None:
        if self._saving is not None:
            self._saving.result()
            self._saving = None


def _together(examples: Sequence[Example], row_tokens: int) -> PackedBatch | None:
    """Return the examples as one batch; None if there are none."""
    if not examples:
        return None
    rows = share_rows([len(example) for example in examples], row_tokens)
    packed = [[examples[index] for index in row] for row in rows]
    return pack_examples(packed, time=row_tokens, sequences_per_row=most_in_a_row([[rows]]))


def _keep_steps(path: Path, step: int) -> None:
    """Remove the lines of metrics.jsonl after a step: those that a killed process wrote and that are repeated."""
    file = StepsFile(path)
    file.refresh()
    kept = [line for line in file.steps if line["step"] <= step]
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept).encode())


def _not_finite(step: int) -> NotFinite:
    return NotFinite(
        f"loss or gradient norm was not finite in {SKIPPED_IN_A_ROW_MAX} steps in a row, the last being step {step}",
        cause="the model's numbers overflowed",
        fix="lower optimiser.learning_rate, and start again in another run_folder",
    )
