from __future__ import annotations

from coordinator.core.members.membership import RECONSIDERED_AT_ONCE, Members
from rollcast.wire.ids import PeerId, Version
from tests.coordinator.core_world import heartbeat, joined

BAD = PeerId("bad")


def members(**quarantined: str) -> Members:
    return Members(heartbeat_timeout_s=5.0, quarantined={PeerId(name): why for name, why in quarantined.items()})


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


def test_many_members_are_reconsidered_a_part_at_a_time_behind_those_that_changed() -> None:
    here, names = members(), [PeerId(f"p{number}") for number in range(RECONSIDERED_AT_ONCE + 2)]
    here.reconsider(names)
    here.reconsider(names[:1])
    here.changed([PeerId("c")])
    assert here.take_changed() == ["c", *names[:-2]]
    assert here.has_changed
    assert here.take_changed() == names[-2:]
    assert not here.has_changed


def test_silence_is_measured_from_the_last_sign_of_life() -> None:
    here = members()
    here.join(joined("a"), now=0.0)
    here.join(joined("b"), now=0.0)
    here.seen(PeerId("a"), 3.0)
    assert [member.peer_id for member in here.silent(now=5.1)] == ["b"]


def test_a_member_whose_messages_come_seconds_apart_may_be_silent_for_longer_each_time() -> None:
    here = members()
    here.join(joined("a"), now=0.0)
    here.seen(PeerId("a"), 4.0)
    assert here.silent(now=15.9) == []
    assert [member.peer_id for member in here.silent(now=16.1)] == ["a"]
    here.leave(PeerId("a"), "lost", "silent")
    here.join(joined("a"), now=20.0)
    assert here.silent(now=54.0) == [], "it was late before"
    assert [member.peer_id for member in here.silent(now=56.0)] == ["a"], "no silence is waited for longer"


def test_a_new_session_does_not_end_a_quarantine() -> None:
    here = members()
    here.join(joined("bad"), now=0.0)
    assert here.worker_count == 1
    assert [here.quarantine(BAD, why) for why in ("it lies", "again")] == [True, False]
    assert (here.worker_count, here.has_role("peer")) == (0, True)
    here.leave(BAD, "left", "")
    assert here.join(joined("bad"), now=1.0).state == "quarantined"
    assert here.worker_count == 0


def test_an_identity_is_quarantined_before_it_joins() -> None:
    here = members(bad="it lied before the restart")
    culprit = here.join(joined("bad"), now=1.0)
    assert (culprit.state, culprit.reason, here.worker_count) == ("quarantined", "it lied before the restart", 0)
    assert here.enable(BAD) == "quarantined"
    assert here.worker_count == 1


def test_the_departed_are_shown_until_they_return_and_memory_is_bounded() -> None:
    here = members()
    for number in range(17_000):
        here.join(joined(f"p{number}"), now=0.0)
        here.leave(PeerId(f"p{number}"), "lost", "silent")
    assert len(here.departed()) == 16
    assert len(here._reputations) <= 16384
    here.join(joined("p16999"), now=0.0)
    assert PeerId("p16999") not in [one.member.peer_id for one in here.departed()]


def test_members_do_not_count_among_those_that_left() -> None:
    here = members()
    for number in range(17_000):
        here.join(joined(f"p{number}"), now=0.0).reputation.accepted = number
    here.leave(PeerId("p1"), "left", "")
    assert here.reputation(PeerId("p1")).accepted == 1
    assert len(here._reputations) == 17_000


def test_a_quarantined_identity_is_never_discarded() -> None:
    here = members(bad="it lies")
    for number in range(17_000):
        here.join(joined(f"p{number}"), now=0.0)
        here.leave(PeerId(f"p{number}"), "left", "")
    assert here.join(joined("bad"), now=0.0).reputation.quarantined == "it lies"
