"""Test versions that follow each other in whole relays: deltas, retention, restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rollcast.wire.ids import StripeId
from rollcast.wire.links.frames import NO_STRIPE
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.records import PREVIOUS_ID
from tests.peer.relay.relay_world import relay_world, until
from tests.peer.versions import CHUNKS

STRIPE = StripeId(1)


async def test_a_delta_is_applied_and_reported(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a, b = await world.add("origin", "a", "b")
        await world.plan(origin, a, b)
        first = world.published(0)
        await world.publish(first)
        await until(lambda: a.completed == b.completed == [0])
        second = world.published(1, first)
        await world.publish(second)
        await until(lambda: a.completed == b.completed == [0, 1])
        for peer in (a, b):
            assert peer.state(1) == second.state
            assert peer.store.get(1, PREVIOUS_ID) is not None, "it is passed on to those who were away"
            assert peer.relay.bytes_received(1) < len(second.state) / 2
            saved = len(second.state) - len(second.encodings[PREVIOUS_ID])
            assert peer.report.delta_bytes_saved == saved
        assert origin.state(1) == second.state


async def test_peers_that_keep_versions_in_memory_alone_relay_and_follow_them(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        a, b = await world.add("a", "b", store={"memory_only": True})
        await world.plan(origin, a, b)
        newest = world.published(0)
        await world.publish(newest)
        for version in range(1, 4):
            await until(lambda count=version: len(a.completed) == len(b.completed) == count)
            newest = world.published(version, newest)
            await world.publish(newest)
        await until(lambda: a.completed == b.completed == [0, 1, 2, 3])
        (late,) = await world.add("late", store={"memory_only": True})
        world.announce(newest, late)
        await world.plan(origin, a, b, late)
        await until(lambda: late.completed == [3])
        for peer in (a, b, late):
            assert peer.state(3) == newest.state
            assert not list((tmp_path / peer.name).rglob("*")), "nothing is written"


async def test_a_peer_without_the_base_has_the_keyframe(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a")
        first = world.published(0)
        second = world.published(1, first)
        for published in (first, second):
            await world.publish(published)
        (late,) = await world.add("late")
        world.announce(second, late)
        await world.plan(origin, a, late)
        await until(lambda: late.completed and 1 in a.completed)
        assert late.state(1) == a.state(1) == second.state


async def test_a_late_peer_catches_up_however_fast_versions_come(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a", store={"keep_versions": 2})
        await world.plan(origin, a)
        newest = world.published(0)
        await world.publish(newest)
        (late,) = await world.add("late", store={"keep_versions": 2})
        await world.plan(origin, a, late)
        for version in range(1, 41):  # each is removed again before there would have been time to cut it up
            newest = world.published(version, newest)
            await world.publish(newest)
            if len(late.completed) > 2:
                break
            await asyncio.sleep(0.1)
        assert len(late.completed) > 2, "it follows step by step"
        await until(lambda: newest.version in late.completed)
        assert late.state(newest.version) == newest.state


async def test_a_keyframe_stays_while_a_peer_fetches_it(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin", store={"keep_versions": 2})
        slow = await world.puppet()
        await world.plan(origin, slow)
        versions = [world.published(0)]
        versions += [world.published(1, versions[0])]
        for published in versions:
            await world.publish(published)
        link = slow.links[origin.peer_id]
        link.send(pb.LinkMessage(want=pb.Want(version=1, chunk_list=True)))
        await until(lambda: any(have.complete and not have.encoding_id for have in slow.of_kind("have")))
        for version in range(2, 6):
            versions.append(world.published(version, versions[-1]))
            await world.publish(versions[-1])
        await until(lambda: origin.store.versions() == [0, 1, 5])
        slow.chunks.clear()
        link.send(pb.LinkMessage(request=pb.Request(version=1, indices=[7])))
        await until(lambda: any(chunk.version == 1 and chunk.stripe == NO_STRIPE for chunk in slow.chunks))
        link.send(pb.LinkMessage(have=pb.Have(version=1, chunk_count=CHUNKS, complete=True)))
        await world.publish(world.published(6, versions[-1]))
        await until(lambda: origin.store.versions() == [0, 6])


async def test_a_delta_that_leads_elsewhere_is_replaced_by_the_keyframe(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        first = world.published(0)
        broken = world.published(1, first, broken=True)
        for name in ("origin", "a"):
            store = ChunkStore(tmp_path / name, 4)
            first.put(store)
            if name == "origin":
                broken.put(store)
                broken.put(store, PREVIOUS_ID)
            store.close()
        origin, a = await world.add("origin", "a")
        await world.plan(origin, a)
        world.announce(first)
        world.announce(broken)
        await until(lambda: a.completed == [0, 1])
        assert a.state(1) == broken.state
        assert a.relay.bytes_received(1) == len(broken.state) + len(broken.encodings[PREVIOUS_ID])
        assert a.accusations == [], "whoever sent it sent what the learner signed"


async def test_a_delta_that_the_origin_cannot_use_stops_no_peer(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a, first = await world.origin_and_holder()
        broken = world.published(1, first, broken=True)
        await world.publish(broken)
        assert origin.state(1) == broken.state
        await until(lambda: a.completed == [0, 1])
        assert a.state(1) == broken.state


async def test_of_several_announcements_the_newest_comes_first(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a")
        versions = [world.published(version) for version in range(3)]
        for published in versions:
            await world.push(published)
        await world.plan(origin, a)
        for version in (2, 0, 1):
            world.announce(versions[version])
        await until(lambda: 2 in a.completed)
        assert a.completed[0] == 2
        assert a.state(2) == versions[2].state


async def test_a_superseded_version_is_given_up(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (a,) = await world.add("a")
        origin = await world.puppet("origin")
        await world.plan(origin, a)
        link = origin.links[a.peer_id]
        old, new = world.published(0), world.published(1)
        origin.announce(link, old)
        world.announce(old)
        await until(lambda: a.store.get(0))
        origin.send_chunks(link, old, range(5), STRIPE)
        await until(lambda: a.chunks_of(0) == 5)
        world.announce(new)
        await until(lambda: a.store.get(0) is None)
        origin.announce(link, new)
        await until(lambda: a.store.get(1))
        origin.send_chunks(link, new, range(CHUNKS), STRIPE)
        await until(lambda: a.completed == [1])


async def test_the_sender_of_an_unsigned_list_is_accused(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (a,) = await world.add("a")
        origin = await world.puppet("origin")
        await world.plan(origin, a)
        link, published = origin.links[a.peer_id], world.published(0)
        link.send(pb.LinkMessage(announcement=published.announcement))
        link.send(pb.LinkMessage(chunk_list=pb.ChunkList(version=0, hashes=bytes(32 * CHUNKS))))
        await until(lambda: origin.closed)
        assert [one.culprit_peer_id for one in a.accusations] == [origin.peer_id]


async def test_chunks_that_overtake_their_list_are_not_lost(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (a,) = await world.add("a")
        origin = await world.puppet("origin")
        await world.plan(origin, a)
        link, published = origin.links[a.peer_id], world.published(0)
        origin.send_chunks(link, published, range(CHUNKS), STRIPE)
        origin.announce(link, published)
        world.announce(published)
        await until(lambda: a.completed)
        assert a.relay.bytes_received(0) == len(published.state)


async def test_a_restarted_origin_broadcasts_nothing_again(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        published = world.published(0)
        await world.publish(published)
        await origin.restart()
        peer = await world.puppet()
        await world.plan(origin, peer)
        world.announce(published)
        assert origin.completed == [0]
        link = peer.links[origin.peer_id]
        link.send(pb.LinkMessage(want=pb.Want(version=0, chunk_list=True)))
        link.send(pb.LinkMessage(request=pb.Request(version=0, indices=[7])))
        await until(lambda: peer.chunks)
        (have,) = peer.of_kind("have")
        assert have.complete
        assert [(chunk.index, chunk.stripe) for chunk in peer.chunks] == [(7, NO_STRIPE)]
        assert bytes(peer.chunks[0].payload) == published.chunk(7)


async def test_a_version_removed_by_retention_is_not_received_again(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin", store={"keep_versions": 2})
        (a,) = await world.add("a")
        await world.plan(origin, a)
        versions = [world.published(version) for version in range(5)]
        for published in versions[:4]:
            await world.publish(published)
            await until(lambda published=published: published.version in a.completed)  # type: ignore[misc]
        await until(lambda: origin.store.versions() == [2, 3])
        await until(lambda: a.store.versions() == [2, 3])
        await origin.restart()
        for published in versions[:4]:
            world.announce(published, origin)
        await world.plan(origin, a)
        await world.publish(versions[4])
        await until(lambda: a.completed[-1] == 4)
        await until(lambda: origin.store.versions() == [3, 4])
        assert [origin.relay.bytes_received(version) for version in range(4)] == [0, 0, 0, 0]


async def test_two_records_of_one_version_end_the_link(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (a,) = await world.add("a")
        origin = await world.puppet("origin")
        await world.plan(origin, a)
        world.announce(world.published(1, world.published(0)))
        origin.links[a.peer_id].send(pb.LinkMessage(announcement=world.published(1).announcement))
        await until(lambda: origin.closed)
        assert "two records of version 1" in origin.closed[0][0]
