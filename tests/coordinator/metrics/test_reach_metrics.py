from __future__ import annotations

from dataclasses import asdict

from coordinator.core.events.reach_events import PunchEnded, PunchRequested
from coordinator.core.traversal.status import build_reach_status
from coordinator.metrics.families import reach_families
from rollcast.wire.ids import PeerId
from tests.coordinator.core.traversal.world import ReachWorld


def test_every_sum_has_a_series() -> None:
    here = ReachWorld()
    for name in ("a", "b"):
        here.say(name, "port-restricted")
    samples = _samples(here)
    assert samples["rollcast_members_reached", "hole-punchable"] == 2
    assert samples["rollcast_members_reached", "dialable"] == 1
    assert samples["rollcast_links", "LAN"] == 0
    assert samples["rollcast_punches_total", "opened"] == 0
    assert ("rollcast_punch_seconds_mean", "") not in samples
    punch_id = here.told(PunchRequested(PeerId("a"), PeerId("b")))["a"].punch.punch_id
    here.tell(PunchEnded(PeerId("a"), punch_id, True, 0.25))
    samples = _samples(here)
    assert samples["rollcast_punches_total", "opened"] == 1
    assert samples["rollcast_punch_seconds_mean", ""] == 0.25
    assert samples["rollcast_pairs_left_alone", ""] == 0
    assert samples["rollcast_peer_records", ""] == 0


def _samples(here: ReachWorld) -> dict[tuple[str, str], float]:
    found = reach_families(asdict(build_reach_status(here.core.state)))
    return {(one.name, "".join(one.labels.values())): one.value for family in found for one in family.samples}
