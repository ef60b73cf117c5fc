"""Follow skipped optimiser updates: count them, write down what they were made of, and stop a run that cannot go on.

The trainer skips an update whose loss or gradient norm is not finite (learner/training/trainer.py). One such batch does
no harm; several in a row are a fault that the next batches will not mend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from learner.training.packing import PackedBatch, TrainingRow
from rollcast.runtime import finite_json
from rollcast.runtime.errors import NotFinite
from rollcast.runtime.run_folder import write_atomically

IN_A_ROW_MAX = 3  # learner steps with a skipped update, one after the other, that end the run
REPORTS_MAX = 8  # newest reports kept on the disk

_log = structlog.get_logger()


class SkippedUpdates:
    """Counts the skipped updates of a run.

    Args:
        folder: where a report on each batch with a skipped update is written; at most REPORTS_MAX are kept.
        figures: the figures that a checkpoint kept, from which counting continues.
    """

    def __init__(self, folder: Path, figures: Mapping[str, float]) -> None:
        self._folder = folder
        self._skipped = int(figures.get("updates_skipped_total", 0.0))
        self._in_a_row = int(figures.get("updates_skipped_in_a_row", 0.0))
        self._last_step = int(figures.get("updates_skipped_at_step", 0.0))

    def figures(self) -> dict[str, float]:
        """Return the run's figures for reports and checkpoints; empty before the first skipped update."""
        if not self._skipped:
            return {}
        return {
            "updates_skipped_total": float(self._skipped),
            "updates_skipped_in_a_row": float(self._in_a_row),
            "updates_skipped_at_step": float(self._last_step),
        }

    def step_done(
        self,
        step: int,
        rows: Sequence[TrainingRow],
        packed: PackedBatch,
        behaviour: np.ndarray[Any, Any],
        values: Mapping[str, float],
    ) -> None:
        """Count the skipped updates of a learner step, and report on its batch if there are any.

        Args:
            step: learner steps completed, this one included.
            rows: the batch's rollouts.
            packed: the same rollouts as they were laid out.
            behaviour: f32 [rows, time], the behaviour log-probabilities that the step used.
            values: the step's figures, of which updates_skipped is the number of skipped updates.

        A learner that starts again replays the same batches and skips the same updates. It does not end a second time
        for steps that it has a report on: starting it again is the operator's decision to go on after them.

        Raises:
            NotFinite: updates were skipped in IN_A_ROW_MAX steps in a row, and the last of them is new.
        """
        skipped = int(values["updates_skipped"])
        if not skipped:
            self._in_a_row = 0
            return
        self._skipped, self._in_a_row, self._last_step = self._skipped + skipped, self._in_a_row + 1, step
        path = self._folder / f"step-{step:08}.json"
        is_new = not path.exists()
        self._write(path, report(step, rows, packed, behaviour, values))
        _log.error("update skipped: loss or gradient norm is not finite", step=step, skipped=skipped, report=str(path))
        if self._in_a_row < IN_A_ROW_MAX:
            return
        self._in_a_row = 0
        if is_new:
            raise NotFinite(
                f"loss or gradient norm was not finite in {IN_A_ROW_MAX} steps in a row, the last being step {step}",
                cause=f"{path} names the rollouts and their figures",
                fix="lower optimiser.learning_rate, or ban the peers whose rollouts it names, and start the learner "
                "again: it skips these updates and goes on",
            )

    def _write(self, path: Path, content: Mapping[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, finite_json.dumps(content).encode())
        for old in sorted(self._folder.glob("step-*.json"))[:-REPORTS_MAX]:
            old.unlink()


def report(
    step: int,
    rows: Sequence[TrainingRow],
    packed: PackedBatch,
    behaviour: np.ndarray[Any, Any],
    values: Mapping[str, float],
) -> dict[str, Any]:
    """Return the report on a batch as plain data; the arguments are those of SkippedUpdates.step_done.

    Numbers that are not finite are written as text, because JSON has none.
    """
    return {
        "step": step,
        "figures": {name: _number(value) for name, value in values.items()},
        "rollouts": [
            _rollout(row, behaviour[place][packed.loss_mask[place]])
            for row, place in zip(rows, packed.places, strict=True)
        ],
    }


def _rollout(row: TrainingRow, behaviour: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {
        "rollout_id": row.rollout_id,
        "group_id": row.group_id,
        "reward": row.reward,
        "temperature": row.temperature,
        "tokens": row.tokens,
        "versions": sorted({segment.version for segment in row.segments if segment.is_generated}),
        "peers": sorted({segment.peer_id for segment in row.segments if segment.is_generated}),
        "behaviour_logprob_min": _number(np.min(behaviour, initial=0.0)),
        "behaviour_logprobs_not_finite": int(np.count_nonzero(~np.isfinite(behaviour))),
    }


def _number(value: Any) -> float | str:
    return float(value) if np.isfinite(value) else str(float(value))
