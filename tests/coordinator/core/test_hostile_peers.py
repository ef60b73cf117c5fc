"""Peers that try to harm others on purpose, and how the core limits the damage."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.events.actions import AnswerUpload, Penalise
from coordinator.core.events.events import LeasesReturned, PartialReceived, PeerAccused
from coordinator.core.members.fair_share import IDLE, FairShare
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.limits import SEGMENTS_MAX
from rollcast.wire.rollout_messages import lease_from_pb, lease_to_pb
from rollcast.wire.rollouts import LeaseGrant, PartialRollout, Segment
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import SAMPLING, World, announced, held, only, received, rollout, wants

LONG = replace(SAMPLING, max_new_tokens=2000)


def pieces(count: int, begin: int) -> tuple[Segment, ...]:
    """Segments of one token each, by turns of two samplers, so that none is joined with the one before."""
    return tuple(
        Segment(
            "assistant", Epoch(0), Version(0), PeerId("a"), pack_ids((5,)), b"\1", sampler=f"jax-{(begin + number) % 2}"
        )
        for number in range(count)
    )


def send(world: World, lease: LeaseGrant, sample: int, begin: int, count: int) -> None:
    part = PartialRollout(lease.lease_id, lease.fencing_token, sample, begin, pieces(count, begin))
    assert world.handle(PartialReceived(PeerId("a"), part)) == []


def test_a_prefix_of_many_segments_is_not_passed_on() -> None:
    """A peer refuses a lease with too many segments, and would have no room for segments of its own."""
    world = World(sampling=LONG, staleness_limit=4)
    world.start("a", "b")
    world.handle(announced(1))
    for name in ("a", "b"):
        world.handle(held(name, 1))
    world.handle(wants("a", 2))
    (lease, slot), _ = world.take("a")
    for begin in range(0, 4 * SEGMENTS_MAX, SEGMENTS_MAX // 8):
        send(world, lease, slot.sample_index, begin, SEGMENTS_MAX // 8)
    world.handle(LeasesReturned(PeerId("a"), (lease.lease_id,), "no"))
    world.handle(wants("b", 2))
    (again, continued), _ = world.take("b")
    assert 0 < len(continued.prefix) <= SEGMENTS_MAX // 4
    assert lease_from_pb(lease_to_pb(again)) == again


def test_no_peer_continues_tokens_of_a_quarantined_peer() -> None:
    world = World(sampling=LONG, staleness_limit=4)
    world.start("a", "b")
    world.handle(wants("a", 2))
    (lease, slot), _ = world.take("a")
    begun = Segment("assistant", Epoch(0), Version(0), PeerId("a"), pack_ids((5, 6)), b"\1\1")
    part = PartialRollout(lease.lease_id, lease.fencing_token, slot.sample_index, 0, (begun,))
    world.handle(PartialReceived(PeerId("a"), part))
    told = world.handle(PeerAccused(PeerId("b"), PeerId("a"), Version(0), 0, "hash differs", b"signed by a"))
    assert only(told, Penalise)[0].quarantined
    world.handle(wants("b", 2))
    assert [slot.prefix for _, slot in world.take("b")] == [(), ()]


def test_a_rollout_did_not_take_longer_than_its_attempt() -> None:
    """kappa may follow how long rollouts take: a peer must not decide it."""
    world = World()
    world.start("a")
    world.handle(wants("a", 2))
    (lease, slot), _ = world.take("a")
    world.now = 3.0
    world.handle(received("a", 1, rollout(lease, slot.sample_index, generate_s=1e6)))
    assert world.core._state.forecast.generate_p90_s() == 3.0


def test_lines_of_outdated_versions_are_discarded() -> None:
    shares = FairShare()
    for version in range(100):
        for number in range(20):
            shares.wait(PeerId(f"p{number}"), number, Version(version), float(version), rank=IDLE)
        shares.validate()
        assert shares.first(Version(version)) == "p0"
    assert sum(len(line) for line in shares._lines.values()) <= 2 * 20 + 64


def test_a_peer_that_withdraws_its_requests_costs_no_memory() -> None:
    shares = FairShare()
    shares.wait(PeerId("first"), 0, Version(0), 0.0, rank=IDLE)
    for _ in range(1000):
        shares.wait(PeerId("fickle"), 1, Version(0), 1.0, rank=IDLE)
        shares.leave(PeerId("fickle"))
    shares.validate()
    assert sum(len(line) for line in shares._lines.values()) <= 2 + 64


def test_no_peer_continues_tokens_of_a_peer_that_sent_something_malformed() -> None:
    """A peer that repeats a prefix answers for the whole rollout, so tokens of a liar are not passed on."""
    world = World(sampling=LONG, staleness_limit=4)
    world.start("a", "b")
    world.handle(wants("a", 2))
    (lease, _), _ = world.take("a")
    send(world, lease, 0, 0, 1)
    forged = Segment("assistant", Epoch(0), Version(9), PeerId("a"), pack_ids((5, 6)), b"\1\1")
    part = PartialRollout(lease.lease_id, lease.fencing_token, 1, 0, (forged,))
    assert only(world.handle(PartialReceived(PeerId("a"), part)), Penalise)
    world.handle(LeasesReturned(PeerId("a"), (lease.lease_id,), "no"))
    world.handle(wants("b", 2))
    assert [slot.prefix for _, slot in world.take("b")] == [(), ()]


def test_only_the_content_of_an_upload_for_a_held_lease_is_read() -> None:
    world = World()
    world.start("a", "b")
    world.handle(wants("a", 2))
    (lease, slot), *_ = world.take("a")
    key = (lease.lease_id, slot.sample_index)
    assert world.core.expects(PeerId("a"), key)
    assert not world.core.expects(PeerId("b"), key)
    assert not world.core.expects(PeerId("a"), (lease.lease_id, 99))
    world.handle(received("a", 1, rollout(lease, slot.sample_index)))
    assert not world.core.expects(PeerId("a"), key), "a repeated upload is answered by its lease and token alone"
    assert only(world.handle(received("a", 2, replace(rollout(lease, slot.sample_index), segments=()))), AnswerUpload)
