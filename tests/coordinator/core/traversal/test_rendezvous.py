from __future__ import annotations

from coordinator.core.events.actions import SendToPeer
from coordinator.core.events.events import PeerLeft, Tick
from coordinator.core.events.operator_events import PeerBanned
from coordinator.core.events.reach_events import RecordGiven
from coordinator.core.traversal.rendezvous import FIRST_S, REFRESH_S, SAMPLE
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.coordinator.core.traversal.world import ReachWorld
from tests.coordinator.core_world import only


def record(name: str, *addresses: str) -> RecordGiven:
    """What a peer gives; who makes the event has checked the signature."""
    payload = pb.PeerRecord(run_id="run", peer_id=name, addresses=addresses).SerializeToString()
    return RecordGiven(PeerId(name), pb.Signed(payload=payload).SerializeToString())


def world(*names: str) -> ReachWorld:
    made = ReachWorld()
    for name in names:
        made.join(name)
        made.tell(record(name, f"{name}:1"))
    return made


def handed(here: ReachWorld, seconds: float) -> dict[str, set[str]]:
    """Whose records each member is handed when so much time has passed."""
    here.now += seconds
    sent: dict[str, set[str]] = {}
    for one in only(here.tell(Tick()), SendToPeer):
        if one.message.WhichOneof("body") == "peer_records":
            payloads = [signed.payload for signed in one.message.peer_records.records]
            sent[one.peer_id] = {pb.PeerRecord.FromString(payload).peer_id for payload in payloads}
    return sent


def test_who_joins_is_handed_the_others_soon_and_again_later() -> None:
    here = world("a", "b", "c")
    assert handed(here, FIRST_S / 2) == {}
    assert handed(here, FIRST_S) == {"origin": {"a", "b", "c"}, "a": {"b", "c"}, "b": {"a", "c"}, "c": {"a", "b"}}
    assert handed(here, REFRESH_S / 2) == {}
    assert set(handed(here, REFRESH_S)) == {"origin", "a", "b", "c"}


def test_the_newest_record_counts_and_one_without_addresses_is_no_use() -> None:
    here = world("a", "b")
    for event in (record("a"), record("b", "b:1"), record("b", "b:2")):
        here.tell(event)
    here.now += FIRST_S
    sent = {str(one.peer_id): one.message.peer_records.records for one in only(here.tell(Tick()), SendToPeer)}
    assert "b" not in sent
    for name in ("a", "origin"):
        (signed,) = sent[name]
        assert pb.PeerRecord.FromString(signed.payload).addresses == ["b:2"]


def test_who_left_or_is_kept_out_is_not_handed_out() -> None:
    here = world("a", "b", "c")
    assert here.core.state.reach.records == 3
    here.tell(PeerLeft(PeerId("a"), "gone", finished=True))
    assert here.core.state.reach.records == 2
    here.tell(PeerBanned(PeerId("b"), "b", ""))
    assert handed(here, FIRST_S) == {"origin": {"c"}}


def test_the_origin_is_in_every_sample_and_all_others_equally_often() -> None:
    names = [f"p{number}" for number in range(3 * SAMPLE)]
    here = world(*names)
    here.tell(record("origin", "origin:1"))
    samples = handed(here, FIRST_S)
    assert set(samples) == {"origin", *names}
    assert all("origin" in samples[name] and SAMPLE - 1 <= len(samples[name]) <= SAMPLE for name in names)
    times = [sum(name in sample for sample in samples.values()) for name in names]
    assert max(times) - min(times) <= 2


def test_who_comes_and_goes_has_one_turn() -> None:
    here = world("a", "b")
    for _ in range(20):
        here.tell(PeerLeft(PeerId("a"), "gone", finished=True))
        here.join("a")
        here.tell(record("a", "a:1"))
    assert handed(here, FIRST_S)["b"] == {"a"}
