"""The relay's core, alone and as a small network with faults."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.chunk_set import ChunkSet
from peer.relay_actions import (
    AbandonVersion,
    Accuse,
    AnnounceHeld,
    BeginStore,
    CloseLink,
    Dial,
    FinishVersion,
    GiveUp,
    SendCancel,
    SendChunk,
    SendChunkList,
    SendCredit,
    SendHave,
    SendHeld,
    SendWant,
    VerifyAndStore,
)
from peer.relay_core import RelayCore
from peer.relay_events import (
    CancelReceived,
    ChunkArrived,
    ChunkCorrupt,
    ChunkListReceived,
    ChunkSent,
    ChunkStored,
    CreditReceived,
    DialFailed,
    LinkDown,
    LinkId,
    LinkUp,
    Neighbour,
    PlanChanged,
    StoreFailed,
    StoreReady,
    Tick,
    VersionFinished,
    VersionKnown,
    VersionRestored,
    WantReceived,
)
from peer.relay_state import RelaySettings
from rollcast.wire.ids import ChunkIndex, PeerId, PlanId
from tests.peer.relay_world import World, key_of

PARENT = Neighbour(PeerId("parent"), "peer", "parent:1", True)
SPARE = Neighbour(PeerId("spare"), "origin", "spare:1", True)
CHILD = Neighbour(PeerId("child"), "peer", "", False)
KEY = key_of(1)
UP, SIDE, DOWN = LinkId(1), LinkId(2), LinkId(3)


def core(role: str = "peer", credit_chunks: int = 4) -> RelayCore:
    return RelayCore(RelaySettings(role=role, credit_chunks=credit_chunks, stall_timeout_s=3.0))


def receiving_core(chunks: int = 4) -> RelayCore:
    """Linked to its parent, which has sent the chunk list."""
    relay = core()
    relay.handle(PlanChanged(PlanId(1), (PARENT,), (CHILD,), (SPARE,)), 0.0)
    relay.handle(LinkUp(UP, PARENT.peer_id, "peer", True), 0.0)
    relay.handle(VersionKnown(KEY, chunks), 0.0)
    relay.handle(ChunkListReceived(UP, KEY, True), 0.0)
    relay.handle(StoreReady(KEY, ChunkSet(chunks).bitmap), 0.0)
    return relay


def arrive(relay: RelayCore, index: int, link: LinkId = UP, now: float = 0.0) -> list[object]:
    event = ChunkArrived(link, KEY, ChunkIndex(index), 10)
    assert relay.handle(event, now) == [VerifyAndStore(link, KEY, ChunkIndex(index))]
    return list(relay.handle(ChunkStored(link, KEY, ChunkIndex(index), 10), now))


def test_a_plan_opens_links_before_any_version() -> None:
    relay = core()
    assert relay.handle(PlanChanged(PlanId(1), (PARENT,), (CHILD,), (SPARE,)), 0.0) == [Dial(PARENT)]
    assert relay.handle(Tick(), 1.0) == []


def test_an_announced_version_is_asked_of_the_parent_with_credit() -> None:
    relay = core()
    relay.handle(PlanChanged(PlanId(1), (PARENT,), (), (SPARE,)), 0.0)
    relay.handle(LinkUp(UP, PARENT.peer_id, "peer", True), 0.0)
    assert relay.handle(VersionKnown(KEY, 9), 0.0) == [SendWant(UP, KEY), SendCredit(UP, KEY, 3)]
    assert relay.handle(ChunkListReceived(UP, KEY, True), 0.0) == [BeginStore(KEY)]
    assert relay.handle(StoreReady(KEY, ChunkSet(9, [2]).bitmap), 0.0) == [
        SendHave(UP, KEY, 9, ChunkSet(9, [2]).bitmap, False)
    ]


def test_nothing_is_granted_before_the_store_has_looked_for_what_it_holds() -> None:
    relay = core()
    relay.handle(PlanChanged(PlanId(1), (PARENT,), (), ()), 0.0)
    relay.handle(LinkUp(UP, PARENT.peer_id, "peer", True), 0.0)
    assert relay.handle(VersionKnown(KEY, 9, resumable=True), 0.0) == [SendWant(UP, KEY)]
    relay.handle(ChunkListReceived(UP, KEY, True), 0.0)
    found = ChunkSet(9, range(8))
    assert relay.handle(StoreReady(KEY, found.bitmap), 0.0) == [
        SendHave(UP, KEY, 9, found.bitmap, False),
        SendCredit(UP, KEY, 1),
    ]


def test_a_verified_chunk_is_passed_on_while_the_rest_is_on_its_way() -> None:
    relay = receiving_core()
    relay.handle(LinkUp(DOWN, CHILD.peer_id, "peer", False), 0.0)
    assert relay.handle(WantReceived(DOWN, KEY), 0.0) == [
        SendHave(DOWN, KEY, 4, b"\x00", False),
        SendChunkList(DOWN, KEY),
    ]
    assert relay.handle(CreditReceived(DOWN, KEY, 1), 0.0) == []
    assert arrive(relay, 2) == [SendChunk(DOWN, KEY, ChunkIndex(2)), SendCredit(UP, KEY, 1)]
    assert arrive(relay, 0) == []
    assert relay.handle(CreditReceived(DOWN, KEY, 1), 0.0) == [SendChunk(DOWN, KEY, ChunkIndex(0))]


def test_the_last_chunk_finishes_the_version_and_acknowledges_it() -> None:
    relay = receiving_core(chunks=2)
    arrive(relay, 0)
    assert arrive(relay, 1) == [FinishVersion(KEY)]
    assert relay.handle(VersionFinished(KEY), 0.0) == [SendHeld(UP, KEY.version), AnnounceHeld(KEY)]
    assert relay.state.counters.chunk_bytes_from_peers == 20


def test_a_corrupt_chunk_closes_the_link_accuses_and_is_fetched_elsewhere() -> None:
    relay = receiving_core()
    relay.handle(ChunkArrived(UP, KEY, ChunkIndex(1), 10), 0.0)
    actions = relay.handle(ChunkCorrupt(UP, KEY, ChunkIndex(1)), 0.0)
    why = "chunk does not match its signed hash"
    assert actions == [Accuse(PARENT.peer_id, KEY.version, ChunkIndex(1), why), CloseLink(UP, why), Dial(SPARE)]
    relay.handle(LinkUp(LinkId(9), PARENT.peer_id, "peer", False), 1.0)
    assert not relay.state.encodings[KEY].sources, "the culprit is not asked again"
    assert SendWant(SIDE, KEY) in relay.handle(LinkUp(SIDE, SPARE.peer_id, "origin", True), 1.0)


def test_chunks_without_credit_close_the_link() -> None:
    relay = receiving_core()
    for index in range(3):
        relay.handle(ChunkArrived(UP, KEY, ChunkIndex(index), 10), 0.0)
    actions = relay.handle(ChunkArrived(UP, KEY, ChunkIndex(3), 10), 0.0)
    assert CloseLink(UP, "a chunk was pushed without credit") in actions


def test_a_stalled_parent_is_hedged_and_dropped_once_the_other_delivers() -> None:
    relay = receiving_core()
    assert relay.handle(Tick(), 2.9) == []
    assert relay.handle(Tick(), 3.1) == [Dial(SPARE)]
    assert SendWant(SIDE, KEY) in relay.handle(LinkUp(SIDE, SPARE.peer_id, "origin", True), 3.2)
    arrive(relay, 0, SIDE, 3.3)
    relay.handle(Tick(), 3.4)
    assert set(relay.state.encodings[KEY].sources) == {SIDE}
    arrive(relay, 1, SIDE, 3.5)
    assert relay.state.encodings[KEY].have.count == 2


def test_a_late_chunk_of_a_cancelled_source_is_welcome() -> None:
    relay = receiving_core()
    relay.handle(Tick(), 3.1)
    relay.handle(LinkUp(SIDE, SPARE.peer_id, "origin", True), 3.2)
    arrive(relay, 0, SIDE, 3.3)
    relay.handle(Tick(), 3.4)
    arrive(relay, 1, UP, 3.5)
    assert 1 in relay.state.encodings[KEY].have


def test_a_source_that_refuses_is_asked_again_only_after_a_while() -> None:
    relay = receiving_core()
    relay.handle(PlanChanged(PlanId(2), (PARENT,), (), ()), 0.5)
    assert relay.handle(CancelReceived(UP, KEY, "not held here"), 1.0) == []
    asked = [now for now in (1.5, 2.5, 3.5, 4.1) if SendWant(UP, KEY) in relay.handle(Tick(), now)]
    assert asked == [4.1]


def test_a_dead_parent_is_bypassed_at_once() -> None:
    relay = receiving_core()
    assert relay.handle(LinkDown(UP, "reset"), 0.5) == [Dial(SPARE)]
    assert relay.handle(DialFailed(SPARE.peer_id, "refused", 1.0), 0.6) == []
    assert Dial(PARENT) in relay.handle(Tick(), 1.0)


def test_a_new_parent_takes_over_without_losing_a_chunk() -> None:
    relay = receiving_core()
    arrive(relay, 3)
    other = Neighbour(PeerId("other"), "peer", "other:1", True)
    assert relay.handle(PlanChanged(PlanId(2), (other,), (), (SPARE,)), 1.0) == [Dial(other)]
    assert set(relay.state.encodings[KEY].sources) == {UP}, "the old parent goes on meanwhile"
    actions = relay.handle(LinkUp(SIDE, other.peer_id, "peer", True), 1.1)
    assert actions[:2] == [SendWant(SIDE, KEY), SendHave(SIDE, KEY, 4, ChunkSet(4, [3]).bitmap, False)]
    assert set(relay.state.encodings[KEY].sources) == {SIDE}


def test_a_newer_version_supersedes_one_of_which_little_arrived() -> None:
    relay = receiving_core()
    arrive(relay, 0)
    relay.handle(VersionKnown(key_of(2), 4), 1.0)
    assert [encoding.key for encoding in relay.state.in_flight()] == [key_of(2)]


def test_a_version_of_which_much_arrived_goes_on_behind_the_newer_one() -> None:
    relay = receiving_core()
    for index in range(3):
        arrive(relay, index)
    relay.handle(VersionKnown(key_of(2), 4), 1.0)
    assert [encoding.key for encoding in relay.state.in_flight()] == [key_of(2), KEY]
    relay.handle(VersionKnown(key_of(3), 4), 1.0)
    assert [encoding.key for encoding in relay.state.in_flight()] == [key_of(3), KEY]


def test_older_news_is_old() -> None:
    relay = core()
    relay.handle(VersionRestored(key_of(5), 4), 0.0)
    assert relay.handle(VersionKnown(key_of(4), 4), 0.0) == []
    assert relay.state.in_flight() == []


def test_the_origin_asks_on_the_link_that_announced_and_acknowledges_there() -> None:
    relay = core(role="origin")
    relay.handle(LinkUp(UP, PeerId("learner"), "learner", False), 0.0)
    assert relay.handle(VersionKnown(KEY, 1, announced_on=UP), 0.0) == [SendWant(UP, KEY), SendCredit(UP, KEY, 1)]
    relay.handle(ChunkListReceived(UP, KEY, True), 0.0)
    relay.handle(StoreReady(KEY, ChunkSet(1).bitmap), 0.0)
    assert arrive(relay, 0) == [FinishVersion(KEY)]
    assert relay.handle(VersionFinished(KEY), 0.0)[0] == SendHeld(UP, KEY.version)
    assert relay.handle(VersionKnown(KEY, 1, announced_on=UP), 1.0) == [SendHeld(UP, KEY.version)]


def test_a_sender_never_hands_more_than_a_few_chunks_to_the_transport() -> None:
    relay = core()
    relay.handle(VersionRestored(KEY, 100), 0.0)
    relay.handle(LinkUp(DOWN, CHILD.peer_id, "peer", False), 0.0)
    relay.handle(WantReceived(DOWN, KEY), 0.0)
    actions = relay.handle(CreditReceived(DOWN, KEY, 50), 0.0)
    assert actions == [SendChunk(DOWN, KEY, ChunkIndex(index)) for index in range(8)]
    assert relay.handle(ChunkSent(DOWN), 0.0) == [SendChunk(DOWN, KEY, ChunkIndex(8))]


def test_a_full_disk_gives_the_version_up_with_its_reason() -> None:
    relay = receiving_core()
    assert relay.handle(StoreFailed(KEY, "no space left"), 0.0) == [
        SendCancel(UP, KEY, "no space left"),
        AbandonVersion(KEY, "no space left"),
    ]
    assert str(relay.state.store_failure) == f"cannot store version {KEY.version}: no space left"
    assert relay.handle(StoreFailed(KEY, "a chunk that was under way"), 0.0) == []
    assert relay.handle(VersionKnown(KEY, 4), 1.0) == []


def test_chunks_that_the_disk_refused_give_their_credit_back() -> None:
    relay = receiving_core()
    for index in (0, 1):
        relay.handle(ChunkArrived(UP, KEY, ChunkIndex(index), 10), 0.0)
    for _ in (0, 1):
        relay.handle(StoreFailed(KEY, "no space left", link=UP), 0.0)
    assert relay.state.links[UP].verifying == 0


def test_a_version_that_could_not_be_stored_is_received_again_three_times_in_all() -> None:
    relay = receiving_core()
    for again_at_s in (15.0, 30.0):
        relay.handle(StoreFailed(KEY, "no space left"), again_at_s - 15.0)
        assert relay.handle(Tick(), again_at_s - 0.1) == []
        assert SendWant(UP, KEY) in relay.handle(Tick(), again_at_s)
        relay.handle(ChunkListReceived(UP, KEY, True), again_at_s)
    assert relay.handle(StoreFailed(KEY, "no space left", "free some"), 30.0)[-1] == GiveUp(
        KEY.version, "no space left", "free some"
    )


def test_what_the_learner_sends_again_by_itself_counts_too() -> None:
    relay = core(role="origin")
    relay.handle(LinkUp(UP, PeerId("learner"), "learner", False), 0.0)
    for second in range(3):
        assert SendWant(UP, KEY) in relay.handle(VersionKnown(KEY, 1, announced_on=UP), second)
        relay.handle(ChunkListReceived(UP, KEY, True), second)
        actions = relay.handle(StoreFailed(KEY, "no space left"), second)
        assert (GiveUp(KEY.version, "no space left", "") in actions) == (second == 2)
        assert relay.handle(Tick(), second) == []


def test_a_version_that_is_stored_ends_the_row_of_failures() -> None:
    relay = receiving_core(chunks=1)
    newer = key_of(KEY.version + 1)
    arrive(relay, 0)
    relay.handle(VersionKnown(newer, 1), 0.0)
    relay.handle(StoreFailed(newer, "no space left"), 0.0)
    relay.handle(VersionFinished(KEY), 0.0)
    assert relay.state.store_failure is not None
    assert relay.state.store_failure.in_a_row == 0
    assert SendWant(UP, newer) in relay.handle(Tick(), 15.0)
    relay.handle(ChunkListReceived(UP, newer, True), 15.0)
    relay.handle(StoreReady(newer, ChunkSet.full(1).bitmap), 15.0)
    relay.handle(VersionFinished(newer), 15.0)
    assert relay.state.store_failure is None


def chain(world: World, *names: str) -> None:
    world.plan(dict(zip(names[1:], names, strict=False)))


def all_hold(world: World, version: int) -> bool:
    return all(key_of(version) in node.held for node in world.nodes.values() if node.alive and node.role == "peer")


def test_a_chain_delivers_and_the_origin_sends_one_copy() -> None:
    world = World(Random(1), chunks=20)
    for name in ("origin", "a", "b", "c"):
        world.add(name, "origin" if name == "origin" else "peer")
    chain(world, "origin", "a", "b", "c")
    world.settle(lambda: False, 1.0)
    world.publish(1)
    for name in "abc":
        world.announce(world.nodes[name], 1)
    assert world.settle(lambda: all_hold(world, 1), 2.0)
    assert world.nodes["origin"].bytes_sent == 20 * 16


@pytest.mark.parametrize("seed", range(5))
def test_liars_are_accused_and_bypassed(seed: int) -> None:
    world = World(Random(seed), chunks=20)
    for name in ("origin", "a", "b", "c"):
        world.add(name, "origin" if name == "origin" else "peer")
    world.nodes["a"].lies = True
    chain(world, "origin", "a", "b", "c")
    world.publish(1)
    for name in "abc":
        world.announce(world.nodes[name], 1)
    assert world.settle(lambda: all_hold(world, 1), 30.0)
    assert world.nodes["b"].accused


@settings(deadline=None, max_examples=100)
@given(random=st.randoms(use_true_random=False), chunks=st.integers(1, 24), size=st.integers(2, 5))
def test_any_interleaving_of_faults_ends_with_every_live_peer_complete(random: Random, chunks: int, size: int) -> None:
    world = World(random, chunks, credit_chunks=random.choice([1, 2, 4, 32]))
    names = ["origin", *(f"p{index}" for index in range(size))]
    for name in names:
        world.add(name, "origin" if name == "origin" else "peer")
    for name in names[1:]:
        world.nodes[name].lies = random.random() < 0.2
    world.publish(1)
    _disturb(world, names, random)
    live = [name for name in names if world.nodes[name].alive]
    random.shuffle(live)
    live.sort(key=lambda name: name != "origin")
    chain(world, *live)
    for node in world.nodes.values():
        if node.alive and node.role == "peer":
            world.announce(node, 2)
    assert world.settle(lambda: all_hold(world, 2)), _why(world)


def _disturb(world: World, names: list[str], random: Random) -> None:
    newest = 1
    for _ in range(random.randint(0, 120)):
        alive = [name for name in names if world.nodes[name].alive]
        choice = random.random()
        if choice < 0.03 and len(alive) > 2:
            world.kill(world.nodes[random.choice(alive[1:])])
        elif choice < 0.08:
            order = alive[1:]
            random.shuffle(order)
            world.plan({name: random.choice(["origin", *order[:place]]) for place, name in enumerate(order)})
        elif choice < 0.12 and world.ends:
            world.sever(*random.choice(list(world.ends)))
        elif choice < 0.2:
            world.announce(world.nodes[random.choice(alive[1:] or alive)], newest)
        elif choice < 0.22 and newest == 1:
            newest = 2
            world.publish(2)
        elif choice < 0.3:
            world.tick(random.choice([0.1, 1.0, 4.0]))
        else:
            world.step()
    if newest == 1:
        world.publish(2)


def _why(world: World) -> str:
    return "\n".join(
        f"{node.name} alive={node.alive} lies={node.lies} {node.core.state.encodings} {node.core.state.links}"
        for node in world.nodes.values()
    )
