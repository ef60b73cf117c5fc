"""Decide which stage of the run a learner step belongs to, and how long completions may be in it.

Stages begin at fixed learner steps, so a restarted coordinator is in the same stage without remembering it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollcast.wire.ids import Step


@dataclass(frozen=True, slots=True)
class LengthStage:
    """A stage of the run. It lasts from its first step until the next stage's."""

    name: str
    from_step: int  # learner steps; that of the first stage is 0
    new_tokens_max: int  # longest completion, never below an earlier stage's


def stage_at(stages: Sequence[LengthStage], step: Step) -> LengthStage | None:
    """Return the stage of a learner step; None in a run without stages."""
    return next((stage for stage in reversed(stages) if stage.from_step <= step), None)
