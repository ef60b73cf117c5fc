from __future__ import annotations

from coordinator.core.members.membership import Members
from rollcast.wire.ids import PeerId, Version
from tests.coordinator.core_world import heartbeat, joined


def members(**changes: int) -> Members:
    return Members(
        heartbeat_timeout_s=5.0,
        demotion_s=60.0,
        quarantine_chunks=changes.get("quarantine_chunks", 3),
        quarantine_accusers=changes.get("quarantine_accusers", 1),
        taken_over=bool(changes.get("taken_over", False)),
    )


def test_only_an_active_willing_peer_may_work() -> None:
    here = members()
    peer = here.join(joined("a"), now=0.0)
    origin = here.join(joined("origin", role="origin"), now=0.0)
    assert not peer.may_work
    peer.holds(Version(3))
    origin.holds(Version(3))
    assert peer.may_work
    assert not origin.may_work
    peer.facts = heartbeat("a", state="draining", active=3).facts
    assert not peer.may_work
    assert (here.worker_count, here.origin) == (1, origin)


def test_held_versions_never_go_back() -> None:
    peer = members().join(joined("a"), now=0.0)
    for version in (2, 5, 4):
        peer.holds(Version(version))
    assert peer.version == 5


def test_a_changed_request_is_considered_once_and_a_heartbeat_changes_nothing() -> None:
    here = members()
    a, b = here.join(joined("a"), now=0.0), here.join(joined("b"), now=0.0)
    assert here.take_changed() == ["a", "b"]
    here.set_free_slots(b, 4)
    here.seen(PeerId("a"), 1.0)
    assert here.seen(PeerId("nobody"), 1.0) is None
    here.changed([PeerId("c")])
    assert here.take_changed() == ["b", "c"]
    assert here.take_changed() == []
    assert (a.last_seen, b.free_slots) == (1.0, 4)


def test_silence_is_measured_from_the_last_sign_of_life() -> None:
    here = members()
    here.join(joined("a"), now=0.0)
    here.join(joined("b"), now=0.0)
    here.seen(PeerId("a"), 3.0)
    assert [member.peer_id for member in here.silent(now=5.1)] == ["b"]


def test_three_distinct_chunks_quarantine_and_a_new_session_does_not_reset_it() -> None:
    here = members()
    culprit = here.join(joined("bad"), now=0.0)
    verdicts = [here.accuse(culprit, PeerId("a"), (Version(1), index), 1.0) for index in (0, 0, 1, 2, 3)]
    assert verdicts == [False, False, False, True, False]
    here.leave(PeerId("bad"), "left", "")
    assert here.join(joined("bad"), now=1.0).state == "quarantined"


def test_each_accusation_demotes_for_a_while() -> None:
    here = members()
    culprit = here.join(joined("bad"), now=0.0)
    culprit.holds(Version(1))
    here.accuse(culprit, PeerId("a"), (Version(1), 0), 1.0)
    assert not culprit.may_relay
    assert culprit.may_work
    assert culprit.reason == "does not relay for now: sent a corrupt chunk"
    assert not here.end_demotions(60.9)
    assert here.end_demotions(61.0)
    assert culprit.may_relay
    assert culprit.reason == ""
    assert not here.end_demotions(62.0)


def test_several_accusers_can_be_required() -> None:
    here = members(quarantine_chunks=1, quarantine_accusers=2)
    culprit = here.join(joined("bad"), now=0.0)
    for name in ("a", "b"):
        here.join(joined(name), now=0.0)
    assert not here.accuse(culprit, PeerId("a"), (Version(1), 0), 1.0)
    assert not here.accuse(culprit, PeerId("a"), (Version(1), 1), 1.0)
    assert here.accuse(culprit, PeerId("b"), (Version(1), 0), 1.0)
    assert (here.worker_count, here.has_role("peer")) == (2, True)


def test_one_accuser_cannot_profit_from_a_short_absence_of_others() -> None:
    here = members(quarantine_chunks=1, quarantine_accusers=2)
    culprit = here.join(joined("bad"), now=0.0)
    for name in ("a", "b"):
        here.join(joined(name), now=0.0)
    here.end_demotions(0.5)
    here.leave(PeerId("b"), "lost", "")
    assert not here.accuse(culprit, PeerId("a"), (Version(1), 0), 1.0)
    assert here.accuse(culprit, PeerId("a"), (Version(1), 0), 61.0)


def test_after_a_restart_one_accuser_is_not_enough_at_once() -> None:
    here = members(quarantine_chunks=1, quarantine_accusers=2, taken_over=True)
    culprit = here.join(joined("bad"), now=100.0)
    here.join(joined("a"), now=100.0)
    assert not here.accuse(culprit, PeerId("a"), (Version(1), 0), 101.0)
    assert here.accuse(culprit, PeerId("a"), (Version(1), 0), 160.0)


def test_one_accuser_is_enough_where_there_may_be_no_other() -> None:
    here = members(quarantine_chunks=1, quarantine_accusers=2)
    culprit = here.join(joined("bad"), now=0.0)
    here.join(joined("a"), now=0.0)
    assert here.accuse(culprit, PeerId("a"), (Version(1), 0), 1.0)
    here.leave(PeerId("bad"), "left", "")
    assert here.worker_count == 1
    here.join(joined("bad"), now=0.0)
    assert here.worker_count == 1


def test_the_origin_is_never_quarantined() -> None:
    here = members()
    origin = here.join(joined("origin", role="origin"), now=0.0)
    assert not any(here.accuse(origin, PeerId("a"), (Version(1), index), 1.0) for index in range(100))


def test_the_departed_are_shown_until_they_return_and_memory_is_bounded() -> None:
    here = members()
    for number in range(17_000):
        here.join(joined(f"p{number}"), now=0.0)
        here.leave(PeerId(f"p{number}"), "lost", "silent")
    assert len(here.departed()) == 16
    assert len(here._reputations) <= 16384
    here.join(joined("p16999"), now=0.0)
    assert PeerId("p16999") not in [one.member.peer_id for one in here.departed()]


def test_a_quarantined_identity_is_never_discarded() -> None:
    here = members(quarantine_chunks=1)
    here.accuse(here.join(joined("bad"), now=0.0), PeerId("a"), (Version(1), 0), 1.0)
    here.leave(PeerId("bad"), "left", "")
    for number in range(17_000):
        here.join(joined(f"p{number}"), now=0.0)
        here.leave(PeerId(f"p{number}"), "left", "")
    assert here.join(joined("bad"), now=0.0).reputation.quarantined == "sent 1 corrupt chunk"
