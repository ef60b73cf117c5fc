"""The events of profiles: an operator orders a trace of the learner's next steps, and the learner reports on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProfileOrder:
    """A trace to be made. ``profile_id`` is new for each."""

    profile_id: str
    steps: int
    python_tracer: bool  # whether the trace has every Python call, which slows the steps down


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """How far the learner is with a trace.

    Attributes:
        first_step: the first step in it; None until the trace begins.
        steps_done: steps that are in it so far.
        ended: whether the learner does nothing more for it.
        folder: path on the machine of the learner's process 0; empty until the trace begins.
        size_bytes: bytes in that folder, once it ended.
        failure: why it ended without all steps; empty if it has them, or goes on.
    """

    profile_id: str
    first_step: int | None = None
    steps_done: int = 0
    ended: bool = False
    folder: str = ""
    size_bytes: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ProfileRequested:
    """The operator asks for a trace, which is given up after ``deadline_s`` seconds. The event may repeat."""

    order: ProfileOrder
    deadline_s: float


@dataclass(frozen=True, slots=True)
class ProfileReported:
    """The learner's status arrived while a profile is under way, with its newest report; None: it has no order."""

    report: ProfileReport | None
