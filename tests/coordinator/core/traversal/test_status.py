from __future__ import annotations

from coordinator.core.events.events import LinkFacts
from coordinator.core.events.reach_events import PunchEnded, PunchRequested
from coordinator.core.traversal.status import build_reach_status
from rollcast.wire.ids import PeerId
from tests.coordinator.core.traversal.world import ReachWorld
from tests.coordinator.core_world import heartbeat


def link(to: str, transport: str, *, lan: bool = False) -> LinkFacts:
    return LinkFacts(PeerId(to), transport, 0.0, 0, 0, 0.0, "", lan)


def test_members_links_and_holes_are_counted() -> None:
    here = ReachWorld()
    here.join("d", address="d:1")
    for name, nat in (("a", "port-restricted"), ("b", "port-restricted"), ("s", "symmetric")):
        here.say(name, nat)
    here.tell(heartbeat("a", links=(link("b", "punched"), link("d", "direct"), link("origin", "direct", lan=True))))
    here.tell(heartbeat("s", links=(link("d", "relayed"),)))
    first = here.told(PunchRequested(PeerId("a"), PeerId("b")))["a"].punch.punch_id
    here.tell(PunchEnded(PeerId("a"), first, True, 0.5))
    second = here.told(PunchRequested(PeerId("b"), PeerId("a")))["b"].punch.punch_id
    here.tell(PunchEnded(PeerId("b"), second, False, 3.0))
    here.told(PunchRequested(PeerId("a"), PeerId("s")))
    status = build_reach_status(here.core.state)
    assert status.members == {"dialable": 2, "hole-punchable": 2, "only outwards": 1}
    assert status.link_ends == {
        "LAN": 1,
        "direct": 1,
        "hole-punched": 1,
        "libp2p": 0,
        "relayed": 1,
        "mirror": 0,
    }
    punches = status.punches
    assert (punches.asked, punches.refused, punches.opened, punches.failed) == (2, 1, 1, 1)
    assert (punches.seconds_mean, punches.pairs_left_alone) == (0.5, 1)


def test_an_address_that_was_refuted_is_none() -> None:
    here = ReachWorld()
    here.join("a", address="a:1")
    here.core.state.reach.found(PeerId("a"), dialable=False)
    assert build_reach_status(here.core.state).members["only outwards"] == 1
