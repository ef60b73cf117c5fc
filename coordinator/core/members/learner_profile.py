"""Keep the newest profile of the learner: what was ordered, how far it is, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coordinator.core.events.profile_events import ProfileOrder, ProfileReport

ProfileStage = Literal["ordered", "running", "saved", "failed"]


@dataclass(frozen=True, slots=True)
class ProfileStatus:
    """A profile as people see it.

    Attributes:
        stage: ordered until the learner begins the trace; at the end saved, or failed for the reason ``failure``.
        first_step: the first learner step in the trace; None until it begins.
        steps_done: steps that are in it so far, of ``steps``.
        folder: path on the machine of the learner's process 0; empty until the trace begins.
        size_bytes: bytes in that folder, once it ended.
    """

    profile_id: str
    stage: ProfileStage
    steps: int
    first_step: int | None
    steps_done: int
    folder: str
    size_bytes: int
    failure: str


@dataclass(slots=True)
class Profile:
    """One trace of the learner's steps. Times are the core's clock, in seconds.

    ``report`` is None until the learner has taken the order up. ``given_up`` says why the coordinator no longer waits.
    """

    order: ProfileOrder
    deadline: float
    report: ProfileReport | None = None
    given_up: str = ""

    @property
    def under_way(self) -> bool:
        """Whether the learner has neither ended it, nor is it given up."""
        return not self.given_up and not (self.report is not None and self.report.ended)

    @property
    def failure(self) -> str:
        """Why there is no whole trace; empty while it is under way, and if there is one."""
        return self.given_up or ("" if self.report is None else self.report.failure)

    def status(self) -> ProfileStatus:
        """Return the profile as people see it."""
        report = self.report or ProfileReport(self.order.profile_id)
        return ProfileStatus(
            self.order.profile_id,
            self._stage(begun=report.first_step is not None),
            self.order.steps,
            report.first_step,
            report.steps_done,
            report.folder,
            report.size_bytes,
            self.failure,
        )

    def _stage(self, *, begun: bool) -> ProfileStage:
        if self.under_way:
            return "running" if begun else "ordered"
        return "failed" if self.failure else "saved"
