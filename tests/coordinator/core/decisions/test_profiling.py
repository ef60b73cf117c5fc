"""Test profiles of the learner: who may order one when, what the learner reports, and how each ends."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.core import CoordinatorCore
from coordinator.core.decisions.profiling import LEARNER_SILENT_S
from coordinator.core.events.actions import Note
from coordinator.core.events.events import LearnerCalled, LearnerStatusChanged, RunEnded, Tick
from coordinator.core.events.profile_events import ProfileOrder, ProfileReport, ProfileReported, ProfileRequested
from tests.coordinator.core_world import settings

FOLDER = "/run/profiles/step-000007"


def world(*, called: bool = True) -> CoordinatorCore:
    core = CoordinatorCore(settings(start_timeout_s=1e9, learner_timeout_s=1e9))
    if called:
        core.handle(LearnerCalled(), 0.0)
    return core


def asked(name: str = "a", *, steps: int = 3, deadline_s: float = 50.0) -> ProfileRequested:
    return ProfileRequested(ProfileOrder(name, steps, python_tracer=False), deadline_s)


def told(name: str = "a", **changes: Any) -> ProfileReported:
    return ProfileReported(ProfileReport(name, **changes))


def ordered() -> CoordinatorCore:
    core = world()
    core.handle(asked(), 1.0)
    return core


def stage(core: CoordinatorCore) -> str:
    assert core.profile is not None
    return core.profile.status().stage


def test_a_trace_is_ordered_followed_and_saved() -> None:
    core = world()
    assert core.profile_due() is None
    assert core.handle(asked(), 1.0) == [Note("profile_ordered", "profile a", "a trace of the learner's next 3 steps")]
    assert core.handle(asked(), 2.0) == [], "a repeated request changes nothing"
    assert core.profile_due() == asked().order
    assert core.handle(told(), 3.0) == []
    assert stage(core) == "ordered"
    begun = core.handle(told(first_step=7, folder=FOLDER), 4.0)
    assert begun == [Note("profile_begun", "profile a", f"with step 7, in {FOLDER}")]
    assert core.handle(told(first_step=7, steps_done=2, folder=FOLDER), 5.0) == []
    assert stage(core) == "running"
    end = told(first_step=7, steps_done=3, ended=True, folder=FOLDER, size_bytes=3_400_000)
    saved = Note("profile_saved", "profile a", f"3 steps from step 7, 3.4 MB in {FOLDER}")
    assert core.handle(end, 6.0) == [saved]
    assert core.handle(end, 7.0) == [], "the learner repeats its newest report"
    assert core.profile is not None
    assert (stage(core), core.profile_due(), core.profile.status().size_bytes) == ("saved", None, 3_400_000)
    assert core.profile_refused(7.0) == ""


def test_one_is_made_at_a_time_and_only_while_a_learner_is_there() -> None:
    core = world(called=False)
    assert core.profile_refused(0.0) == "no learner is connected"
    assert core.handle(asked(), 0.0) == [Note("profile_refused", "profile a", "no learner is connected")]
    core.handle(LearnerCalled(), 0.0)
    assert core.profile_refused(LEARNER_SILENT_S) == "the learner has not called for 60 s"
    core.handle(asked(), 1.0)
    assert core.handle(asked("b"), 2.0) == [Note("profile_refused", "profile b", "another profile is under way")]
    assert core.profile_due() == asked().order
    core.handle(LearnerStatusChanged("finished", "", {}), 3.0)
    core.handle(told(ended=True, failure="no"), 3.0)
    assert core.profile_refused(3.0) == "the learner has finished"
    core.handle(RunEnded("enough", True), 4.0)
    assert core.profile_refused(4.0) == "the run is over: enough"


def test_a_learner_that_cannot_make_it_says_why() -> None:
    core = ordered()
    failed = core.handle(told(first_step=7, ended=True, folder=FOLDER, failure="no space"), 3.0)
    assert failed[-1] == Note("profile_failed", "profile a", "no space")
    assert core.profile is not None
    assert (stage(core), core.profile.status().failure) == ("failed", "no space")


@pytest.mark.parametrize("report", [None, ProfileReport("older", ended=True)])
def test_a_learner_that_comes_back_without_it_was_restarted(report: ProfileReport | None) -> None:
    core = ordered()
    assert core.handle(ProfileReported(report), 2.0) == [], "the order is still on its way"
    core.handle(told(first_step=7, folder=FOLDER), 3.0)
    why = "the learner was restarted before it was done"
    assert core.handle(ProfileReported(report), 4.0) == [Note("profile_given_up", "profile a", why)]
    assert core.profile_due() is None
    assert core.handle(told(first_step=7, steps_done=3, ended=True), 5.0) == [], "it is given up already"
    assert stage(core) == "failed"


@pytest.mark.parametrize(
    ("reports", "why"),
    [((), "the learner began no step in time"), ((told(first_step=7),), "the steps took too long")],
)
def test_it_is_given_up_at_its_deadline(reports: tuple[ProfileReported, ...], why: str) -> None:
    core = ordered()
    for report in reports:
        core.handle(report, 2.0)
    core.handle(LearnerCalled(), 50.0)
    assert core.handle(Tick(), 50.9) == []
    assert core.handle(Tick(), 51.0) == [Note("profile_given_up", "profile a", why)]
    assert core.handle(Tick(), 52.0) == []


def test_a_profile_during_a_pause_says_that_the_run_is_paused() -> None:
    core = ordered()
    core.state.paused = "paused by the operator"
    core.handle(LearnerCalled(), 50.0)
    assert core.handle(Tick(), 51.0) == [Note("profile_given_up", "profile a", "the run is paused")]


def test_it_is_given_up_when_the_learner_is_lost_or_the_run_ends() -> None:
    core = world()
    core.handle(asked(deadline_s=1000.0), 1.0)
    assert core.handle(Tick(), LEARNER_SILENT_S) == [Note("profile_given_up", "profile a", "the learner was lost")]
    core = ordered()
    assert Note("profile_given_up", "profile a", "enough") in core.handle(RunEnded("enough", True), 2.0)
