from __future__ import annotations

from coordinator.core.events.prices import Price
from coordinator.views.capacity import DECISIONS, build_capacity
from coordinator.views.event_rows import EventView
from coordinator.views.workers import KnownMembers
from rollcast.wire.ids import PeerId
from tests.coordinator.views.viewed import core


def test_every_worker_has_its_price_its_speed_and_its_reason() -> None:
    found = core("a", "b")
    found.state.prices = (Price(name="a", usd_per_hour=2.0),)
    standing = found.state.members.standing(PeerId("b"))
    standing.standby, standing.pin, standing.slots_per_s = "off: not needed", "off", 0.25
    event = EventView(3, 1.0, "standby", "b", "b", "off: not needed", "plan 1")
    view = build_capacity(found.state, found.activation_status(), KnownMembers(), None, (event,), unix_s=4.0)
    assert [(one.name, one.on, one.pin, one.reason, one.usd_per_hour, one.rollouts_per_s) for one in view.workers] == [
        ("a", True, "", "", 2.0, None),
        ("b", False, "off", "off: not needed", 0.0, 0.25),
    ]
    assert (view.mode, view.providers, view.spending, view.decisions) == ("off", None, None, (event,))
    assert {"activated", "standby", "pinned", "drained"} <= set(DECISIONS)


def test_rented_workers_bring_their_providers() -> None:
    spending = {"providers": [{"provider": "aws", "machine_usd": 1.0}], "usd_per_hour": 2.0}
    found = core("a")
    view = build_capacity(found.state, found.activation_status(), KnownMembers(), spending, (), unix_s=4.0)
    assert view.providers == ({"provider": "aws", "machine_usd": 1.0},)
    assert view.spending == spending
