from __future__ import annotations

import pytest

from coordinator.core.causes import cause_of
from coordinator.core.events.events import (
    BatchRecorded,
    Event,
    LearnerStatusChanged,
    PeerLeft,
    RolloutScored,
    RunEnded,
    Started,
    Tick,
    WorkRequested,
)
from coordinator.core.events.profile_events import ProfileOrder, ProfileReported, ProfileRequested
from rollcast.wire.ids import PeerId, RolloutId, Step


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (WorkRequested(PeerId("12D3"), 4), "peer 12D3"),
        (PeerLeft(PeerId("12D3"), "bye"), "peer 12D3"),
        (RolloutScored(RolloutId(7), 1.0), "rollout 7"),
        (BatchRecorded(Step(40)), "step 41"),
        (LearnerStatusChanged("", "", {}), "learner"),
        (LearnerStatusChanged("training", "", {}), "learner training"),
        (ProfileRequested(ProfileOrder("1f", 3, False), 60.0), "operator"),
        (ProfileReported(None), "learner"),
        (RunEnded("done", final=True), "end of the run"),
        (Started(), "start"),
        (Tick(), "time"),
    ],
)
def test_an_event_is_named_by_its_subject(event: Event, cause: str) -> None:
    assert cause_of(event) == cause
