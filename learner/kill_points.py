"""Define points at which a test can kill the learner with SIGKILL: a restart after each must reach the same bits.

A point that is not armed costs one comparison. ``ROLLCAST_KILL_POINT=label:3`` kills the process the third time that
it reaches ``label``.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from rollcast.runtime.errors import ConfigError

VARIABLE = "ROLLCAST_KILL_POINT"

#: Every label, in about the order in which a life of the learner reaches them.
LABELS = (
    *("session_open", "before_restore", "restored", "warm_starting", "evaluating"),
    *("before_batch", "batch_received", "batch_replayed", "behaviour_done", "gradient_done", "step_counted"),
    *("version_half_written", "version_written", "snapshot_taken", "state_hashed", "version_signed"),
    *("version_renamed", "version_durable", "version_kept"),
    *("pushing", "pushed", "announced", "version_half_removed"),
    *("before_checkpoint_copy", "checkpoint_begun", "checkpoint_writing", "checkpoint_copied"),
    *("checkpoint_renamed", "checkpoint_durable"),
    *("before_report", "reported", "epoch_opened", "training_done"),
)


@dataclass(slots=True)
class _Armed:
    label: str
    left: int  # occurrences of the label until the process dies, the last one included


_armed: _Armed | None = None


def arm(point: str) -> None:
    """Arm a kill point: ``label`` or ``label:n`` for its n-th occurrence; empty: none.

    Raises:
        ConfigError: the label is unknown.
    """
    global _armed
    if not point:
        _armed = None
        return
    label, _, occurrence = point.partition(":")
    if label not in LABELS or not (occurrence or "1").isdigit():
        raise ConfigError(f"{VARIABLE} is {point!r}", fix=f"label:occurrence, with a label of {', '.join(LABELS)}")
    _armed = _Armed(label, int(occurrence or "1"))


def arm_from_environment() -> None:
    """Arm the kill point that the environment variable names.

    Raises:
        ConfigError: the label is unknown.
    """
    arm(os.environ.get(VARIABLE, ""))


def kill_point(label: str) -> None:
    """Kill this process if the point is armed and its occurrence has come."""
    if _armed is not None and _armed.label == label:
        _armed.left -= 1
        if _armed.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
