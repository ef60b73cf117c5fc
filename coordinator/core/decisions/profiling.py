"""Order a trace of the learner's next steps, and follow it to its end: one at a time, each with a deadline.

The learner gets the order with the answers to its statuses until it reports on it, and begins only once the coordinator
has that report. A learner that comes back without it was restarted in between: the profile is given up, so that a
trace which ends the learner's process is not made again and again. No profile outlives the coordinator.
"""

from __future__ import annotations

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, Note
from coordinator.core.events.profile_events import ProfileOrder, ProfileReported, ProfileRequested
from coordinator.core.members.learner_profile import Profile

LEARNER_SILENT_S = 60.0
"""Seconds without a call after which the learner counts as lost; it reports its status every 5 s."""


def why_refused(state: CoreState, now: float) -> str:
    """Return why no profile can begin now; empty if one can."""
    if state.ended:
        return f"the run is over: {state.ended}"
    if state.progress.phase == "finished":
        return "the learner has finished"
    if state.profile is not None and state.profile.under_way:
        return "another profile is under way"
    called_at = state.progress.called_at
    if called_at is None:
        return "no learner is connected"
    return f"the learner has not called for {now - called_at:.0f} s" if _is_silent(state, now) else ""


def requested(state: CoreState, event: ProfileRequested, now: float) -> list[Action]:
    """Order a profile, unless it is refused; a repeated request changes nothing."""
    order = event.order
    if state.profile is not None and state.profile.order.profile_id == order.profile_id:
        return []
    refused = why_refused(state, now)
    if refused:
        return [Note("profile_refused", _name(order), refused)]
    state.profile = Profile(order, now + event.deadline_s)
    return [Note("profile_ordered", _name(order), f"a trace of the learner's next {_steps(order.steps)}")]


def due(state: CoreState) -> ProfileOrder | None:
    """Return the order that the learner has to have now; None if there is none."""
    profile = state.profile
    return profile.order if profile is not None and profile.under_way else None


def reported(state: CoreState, event: ProfileReported) -> list[Action]:
    """Take over the learner's report on the profile that is under way; reports on others change nothing."""
    profile, report = state.profile, event.report
    if profile is None or not profile.under_way:
        return []
    if report is None or report.profile_id != profile.order.profile_id:
        return [] if profile.report is None else _give_up(profile, "the learner was restarted before it was done")
    before, profile.report = profile.report, report
    actions: list[Action] = []
    if report.first_step is not None and (before is None or before.first_step is None):
        actions.append(
            Note("profile_begun", _name(profile.order), f"with step {report.first_step}, in {report.folder}")
        )
    if report.ended and report.failure:
        actions.append(Note("profile_failed", _name(profile.order), report.failure))
    elif report.ended:
        size_mb = report.size_bytes / 1e6
        detail = f"{_steps(report.steps_done)} from step {report.first_step}, {size_mb:.1f} MB in {report.folder}"
        actions.append(Note("profile_saved", _name(profile.order), detail))
    return actions


def tick(state: CoreState, now: float) -> list[Action]:
    """Give the profile up whose deadline has passed, or whose learner is lost."""
    profile = state.profile
    if profile is None or not profile.under_way:
        return []
    if now >= profile.deadline:
        begun = profile.report is not None and profile.report.first_step is not None
        waited = "the run is paused" if state.paused else "the learner began no step in time"
        return _give_up(profile, "the steps took too long" if begun else waited)
    return _give_up(profile, "the learner was lost") if _is_silent(state, now) else []


def run_ended(state: CoreState) -> list[Action]:
    """Give the profile up, because the run is over."""
    profile = state.profile
    return _give_up(profile, state.ended) if profile is not None and profile.under_way else []


def _give_up(profile: Profile, reason: str) -> list[Action]:
    profile.given_up = reason
    return [Note("profile_given_up", _name(profile.order), reason)]


def _is_silent(state: CoreState, now: float) -> bool:
    called_at = state.progress.called_at
    return called_at is None or now - called_at >= LEARNER_SILENT_S


def _name(order: ProfileOrder) -> str:
    return f"profile {order.profile_id}"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
