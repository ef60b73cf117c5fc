from __future__ import annotations

import json

from coordinator.core.events.events import BatchRequested
from rollcast.wire.ids import Step
from tests.coordinator.core_world import World, wants


def test_limits_in_force_and_what_ages_are_made_of() -> None:
    world = World(groups_per_step=1, late_policy="correct", late_steps_max=2, publish_every_steps=0)
    world.start("a")
    before = world.core.status(0.0).to_json()["staleness"]
    assert (before["split"]["last"], before["split"]["total"]["age_s"], before["split"]["steps"]) == (None, None, ())
    world.tell(wants("a", 2))
    world.finish("a")
    world.now = 2.0
    world.tell(BatchRequested(Step(0)))
    status = world.core.status(2.0).to_json()["staleness"]
    json.dumps(status)
    assert {
        name: status[name] for name in ("limit", "age_max", "late_policy", "publish_every_steps", "publish_auto")
    } == {
        "limit": 1,
        "age_max": 3,
        "late_policy": "correct",
        "publish_every_steps": 1,
        "publish_auto": True,
    }
    assert status["late"] == {"corrected": 0, "waits": 0, "waits_in_vain": 0, "waited_s": 0.0}
    assert status["split"]["last"]["age_s"] == 2.0
    assert [step["step"] for step in status["split"]["steps"]] == [0]
    assert status["split"]["parts"]["queue"] == {"at_most": (0,) * 7 + (2,) * 10, "sum_s": 4.0}
