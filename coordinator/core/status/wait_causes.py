"""Attribute the learner's waits for batches to their causes, and to the peer that caused them where there is one.

The cause is determined on every tick and whenever a batch is requested or served; the time until the next observation
is attributed to it. `rollcast why` adds up the waits of a run.
"""

from __future__ import annotations

import json

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Note
from coordinator.core.members.progress import WAITED, WaitStage
from rollcast.wire.ids import Step

Cause = tuple[WaitStage, str]  # the stage, and the peer that it waits for; empty where it is no single peer

_CAUSES_MAX = 32  # of one wait: bounds the note; further ones are attributed to their stage alone


class WaitCauses:
    """Add up the causes of one wait at a time. All times are the core's clock in seconds."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._step: Step | None = None
        self._observed_at = 0.0
        self._cause: Cause = ("prompts", "")
        self._seconds: dict[Cause, float] = {}

    def observe(self, now: float) -> list[Note]:
        """Observe what the learner waits for now, and return the note of a wait that has ended."""
        step, before = self._waited_for(), self._step
        if before is not None:
            self._add_up(now)
        notes = self._notes(before) if before is not None and step != before else []
        if step is not None:
            self._observed_at, self._cause = now, self._cause_now()
        self._step = step
        return notes

    def _add_up(self, now: float) -> None:
        cause = self._cause
        if cause not in self._seconds and len(self._seconds) >= _CAUSES_MAX:
            cause = (cause[0], "")
        self._seconds[cause] = self._seconds.get(cause, 0.0) + now - self._observed_at

    def _notes(self, step: Step) -> list[Note]:
        """Return the note of what this wait consisted of; none if it took no time."""
        seconds_of, self._seconds = self._seconds, {}
        stages: dict[WaitStage, float] = {}
        for (stage, _), seconds in seconds_of.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
        self._state.progress.waits.append(stages)
        causes = [[stage, who, round(seconds, 3)] for (stage, who), seconds in seconds_of.items() if seconds > 0.0]
        return [Note(WAITED, f"step {step + 1}", json.dumps(causes))] if causes else []

    def _waited_for(self) -> Step | None:
        batches = self._state.batches
        if batches.recording is not None:
            return batches.recording.step
        return batches.wanted

    def _cause_now(self) -> Cause:
        state = self._state
        if state.batches.recording is not None:
            return "store", ""
        if state.paused:
            return "paused", ""
        slowest = state.book.oldest_live(state.settings.groups_per_step)  # of the groups that would make the batch
        if slowest is not None:
            return "generate", slowest.peer_id
        if state.book.unscored:
            return "score", ""
        return self._why_none_works(), ""

    def _why_none_works(self) -> WaitStage:
        state = self._state
        able = [member for member in state.members if member.may_work]
        if not able:
            receiving = state.newest_version is not None and state.members.worker_count > 0
            return "broadcast" if receiving else "no peer"
        oldest_useful = state.batches.next_step - state.rules.limit
        if all(member.version is not None and member.version < oldest_useful for member in able):
            return "broadcast"
        if state.evaluations.under_way():
            return "evaluation"
        return "pacing" if state.prompts.stock else "prompts"
