"""Test real relays on loopback: how a version reaches all peers from the learner, and faults on the way."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from learner.publishing.growth import Growth, Unsigned
from learner.publishing.origin_link import OriginLink
from learner.publishing.push import Push
from peer.links.gate import NetworkGate
from peer.links.stream_link import StreamLink
from peer.links.transport import Link
from peer.relay import link as relay_link
from peer.relay.chunk_memory import ChunkMemory
from peer.relay.core.core import RelayCore
from peer.relay.core.state.actions import Action
from peer.relay.core.state.events import Event
from peer.relay.relay import tick_pause_s
from peer.transports.transports import Transports
from rollcast.runtime.errors import MalformedMessage, RollcastError, WrongKey
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import PeerId, RunId, StripeId
from rollcast.wire.links.frames import ChunkFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.stored_encoding import StoredEncoding
from tests.peer.links.link_run import LinkRun
from tests.peer.mirrors.mirror_server import mirror_server
from tests.peer.relay.relay_world import Member, Puppet, World, disk_full, relay_world, until
from tests.peer.versions import CHUNK_BYTES, CHUNKS, Published

STRIPE = StripeId(1)


def all_hold(members: list[Member], *versions: int) -> bool:
    return all(set(versions) <= set(member.completed) for member in members)


def as_safetensors(published: Published) -> bytes:
    tensor = published.record.tensors[0]
    entry = {"dtype": "U8", "shape": tensor.shape, "data_offsets": [0, tensor.size_bytes]}
    header = json.dumps({tensor.name: entry}).encode()
    return struct.pack("<Q", len(header)) + header + published.state


# ---------------------------------------------------------------- a broadcast


async def test_versions_reach_all_peers_along_the_stripes(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, *peers = await world.add("origin", "a", "b", "c")
        await world.plan(origin, *peers)
        for version in (0, 1):
            published = world.published(version)
            await world.publish(published)
            await until(lambda version=version: all_hold(peers, version))  # type: ignore[misc]
            for peer in peers:
                assert peer.state(version) == published.state
                assert peer.relay.bytes_received(version) >= len(published.state)
        for peer in peers:
            assert peer.report.chunk_bytes_from_peers > 0, "peers pass on what they are given"
            assert peer.report.chunk_bytes_from_origin + peer.report.chunk_bytes_from_peers == sum(
                map(peer.relay.bytes_received, (0, 1))
            )
        assert origin.completed == [0, 1]


async def test_the_learner_gets_an_acknowledgement_once_the_version_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, go_on = threading.Event(), threading.Event()
    finish = StoredEncoding.finish

    def slow_finish(stored: StoredEncoding) -> None:
        at_work.set()
        go_on.wait(10.0)
        finish(stored)

    monkeypatch.setattr(StoredEncoding, "finish", slow_finish)
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        pushing = asyncio.create_task(world.push(world.published(0)))
        await until(at_work.is_set)
        assert not pushing.done()
        go_on.set()
        await pushing
        assert origin.store.versions() == [0]


async def test_the_learner_gets_an_acknowledgement_again_for_a_held_version(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        published = world.published(0)
        await world.push(published)
        await world.push(published)
        await origin.restart()
        await world.push(published)
        assert origin.relay.bytes_received(0) == 0


async def test_the_learner_may_push_versions_faster_than_a_peer_may_announce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An announcement that the origin left out would make the learner wait for an answer until it breaks the link."""
    monkeypatch.setattr(relay_link, "_ANNOUNCEMENTS_AT_ONCE", 0)
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        credentials = world.run.credentials(world.learner.peer_id, "learner")
        async with await OriginLink.connect(
            origin.address, origin.peer_id, run_id=world.run.run_id, credentials=credentials
        ) as link:
            for version in range(3):
                published = world.published(version)
                lists = {(published.version, one): hashes for one, hashes in published.chunk_lists.items()}
                push = Push(published.announcement, published.version, lists)
                await link.push(push, lambda _, encoding_id, index, of=published: of.chunk(index, encoding_id))


async def test_announcement_and_list_go_ahead_of_the_chunks(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, *peers = await world.add("origin", "a", "b")
        await world.plan(origin, *peers)
        await world.push(world.published(0))
        await until(lambda: all(peer.store.get(0) is not None for peer in peers))
        assert [peer.report.chunk_bytes_from_origin for peer in peers] == [0, 0]
        assert all(peer.relay.stats().receiving is None for peer in peers), "nobody announced it to the run"


async def test_an_origin_passes_chunks_on_before_its_own_copy_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, finish = threading.Event(), StoredEncoding.finish

    def slow_finish(stored: StoredEncoding) -> None:
        assert go_on.wait(60.0)
        finish(stored)

    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin", link={"stall_timeout_s": 1.0})
        a, b = await world.add("a", "b")
        await world.plan(origin, a, b)
        published = world.published(0)
        monkeypatch.setattr(StoredEncoding, "finish", slow_finish)
        pushing = asyncio.create_task(world.push(published))
        await until(lambda: all(peer.chunks_of(0) * CHUNK_BYTES >= len(published.state) for peer in (a, b)))
        assert not pushing.done()
        assert a.completed == b.completed == [], "a version is used once it is announced"
        go_on.set()
        await pushing
        world.announce(published)
        await until(lambda: all_hold([a, b], 0))
        assert a.report.chunk_bytes_from_origin + b.report.chunk_bytes_from_origin == len(published.state)


async def test_a_newer_plan_brings_a_late_joiner_in(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a, b = await world.add("origin", "a", "b")
        await world.plan(origin, a, b)
        published = world.published(0)
        await world.publish(published)
        await until(lambda: all_hold([a, b], 0))
        (late,) = await world.add("late")
        world.announce(published, late)
        await world.plan(origin, a, b, late)
        await until(lambda: late.completed)
        assert late.state(0) == published.state
        assert late.report.chunk_bytes_from_peers > 0, "the origin is not the only one that is asked"


async def test_an_older_plan_changes_nothing(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a")
        await world.plan(origin, a)
        await world.plan(origin, a)
        a.relay.apply_plan(pb.RelayPlan(plan_id=1))
        published = world.published(0)
        await world.publish(published)
        await until(lambda: a.completed)


# ---------------------------------------------------------------- resume and restart


async def test_a_peer_that_was_half_way_fetches_only_the_rest(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a")
        published = world.published(0)
        await world.push(published)
        puppet = await world.puppet("origin")
        await world.plan(puppet, a)
        link = puppet.links[a.peer_id]
        puppet.announce(link, published)
        await until(lambda: a.store.get(0))
        puppet.send_chunks(link, published, range(25), STRIPE)
        await until(lambda: a.chunks_of(0) == 25)
        await a.restart()
        await world.plan(origin, a)
        world.announce(published, a)
        await until(lambda: a.completed)
        assert a.relay.bytes_received(0) == len(published.state) - 25 * CHUNK_BYTES
        assert a.state(0) == published.state


async def test_a_version_on_the_disk_is_reported_when_it_is_announced(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        published = world.published(0)
        with_version = ChunkStore(tmp_path / "a", 2)
        published.put(with_version)
        with_version.close()
        (a,) = await world.add("a")
        assert a.completed == []
        world.announce(published)
        assert a.completed == [0]


@pytest.mark.parametrize("what", ["run", "learner"])
async def test_versions_of_another_run_or_learner_are_removed(tmp_path: Path, what: str) -> None:
    async with relay_world(tmp_path) as world:
        learner = Identity.generate() if what == "learner" else world.learner
        other = Published(RunId("run-0") if what == "run" else world.run.run_id, learner, 50)
        store = ChunkStore(tmp_path / "a", 2)
        other.put(store)
        assert store.versions() == [50]
        store.close()
        (a,) = await world.add("a")
        assert a.store.versions() == []
        a.relay.announce(world.published(50).announcement)


# ---------------------------------------------------------------- those who fail


@pytest.mark.parametrize("how", ["dies", "hangs"])
async def test_a_relay_that_fails_half_way_is_bypassed(tmp_path: Path, how: str) -> None:
    async with relay_world(tmp_path) as world:
        origin, b, c = await world.add("origin", "b", "c")
        failing = await world.puppet()

        def fail(link: Link, _frame: ChunkFrame) -> None:
            if how == "dies":
                for one in list(failing.links.values()):
                    one.close("")

        failing.on_chunk = fail
        await world.plan(origin, failing, b, c)
        published = world.published(0)
        await world.publish(published)
        await until(lambda: all_hold([b, c], 0))
        assert failing.chunks, "it was given chunks to pass on"
        assert b.state(0) == c.state(0) == published.state
        assert b.accusations == c.accusations == []


async def test_without_the_origin_peers_receive_from_each_other(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a, published = await world.origin_and_holder()
        (b,) = await world.add("b")
        neighbours = [pb.PlanNeighbour(peer_id=origin.peer_id, role="origin", address=origin.address, we_dial=True)]
        neighbours.append(pb.PlanNeighbour(peer_id=a.peer_id, role="peer", address=a.address, we_dial=True))
        await origin.stop()
        b.relay.apply_plan(pb.RelayPlan(plan_id=9, neighbours=neighbours, parents=[0, 1]))
        world.announce(published, b)
        await until(lambda: b.completed)
        assert b.report.chunk_bytes_from_peers == len(published.state)
        await origin.restart()


async def test_a_state_that_proved_damaged_is_received_again(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        _, a, published = await world.origin_and_holder()
        kept = a.store.folder / "0" / "0.data"
        await until(kept.exists)
        with kept.open("r+b") as file:
            file.write(bytes(16))
        a.relay.receive_again(published.verified.version)
        await until(lambda: a.completed == [0, 0])
        assert a.state(0) == published.state


async def test_a_disk_that_is_full_for_a_while_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a")
        await world.plan(origin, a)
        published = world.published(0)
        await world.push(published)
        with monkeypatch.context() as patch:
            patch.setattr(StoredEncoding, "write_verified", disk_full)
            world.announce(published)
            await until(lambda: a.relay.stats().store_failure)
        await until(lambda: a.completed)
        assert a.relay.stats().store_failure == ""
        assert a.gave_up == []


async def test_a_disk_that_stays_full_ends_the_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a", store={"retry_s": 0.05, "give_up_s": 0.2})
        await world.plan(origin, a)
        published = world.published(0)
        await world.push(published)
        monkeypatch.setattr(StoredEncoding, "write_verified", disk_full)
        world.announce(published)
        await until(lambda: a.gave_up)
        assert a.relay.stats().store_failure.startswith("cannot store version 0: disk full: ")
        assert "cannot store version 0" in str(a.gave_up[0])


async def test_a_bug_in_what_is_done_regularly_ends_the_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay without ticks would ask for nothing that is late, and say nothing about it."""

    def breaks(_core: RelayCore, event: Event, now: float) -> list[Action]:
        raise AssertionError(event, now)

    async with relay_world(tmp_path) as world:
        (a,) = await world.add("a")
        monkeypatch.setattr(RelayCore, "handle", breaks)
        await until(lambda: a.gave_up)
        assert isinstance(a.gave_up[0], AssertionError)
        monkeypatch.undo()


async def test_a_disk_that_changes_bytes_causes_no_accusation(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        published = world.published(0)
        await world.publish(published)
        data = tmp_path / "origin" / "0" / "0.data"
        data.write_bytes(published.state[: 7 * CHUNK_BYTES] + b"x" + published.state[7 * CHUNK_BYTES + 1 :])
        await origin.restart()
        puppet = await world.puppet()
        link = await puppet.dial(origin.peer_id, origin.address)
        link.send(pb.LinkMessage(request=pb.Request(version=0, indices=[7, 8])))
        await until(lambda: puppet.chunks)
        assert [frame.index for frame in puppet.chunks] == [8]


# ---------------------------------------------------------------- adapters over a base


async def test_a_late_joiner_receives_the_base_and_a_restart_does_not_receive_it_again(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a", store={"keep_versions": 2})
        await world.plan(origin, a)
        base = world.published(0)
        await world.publish(base)
        await until(lambda: all_hold([a], 0))
        versions = [world.published(1, over=base)]
        for version in range(2, 5):
            versions.append(world.published(version, versions[-1], over=base))
        for published in versions:
            await world.publish(published)
            await until(lambda published=published: all_hold([a], published.version))  # type: ignore[misc]
        await until(lambda: a.store.versions() == [0, 1, 4])  # retention keeps the base, and what leads to 4
        (late,) = await world.add("late")
        world.announce(versions[-1], late)
        await world.plan(origin, a, late)
        await until(lambda: late.completed)
        assert late.completed == [4], "the base is not a version to generate with by itself"
        assert late.state(0) == base.state
        assert late.report.chunk_bytes_from_peers > 0
        await until(lambda: late.store.versions() == [0, 4])  # durable
        await late.restart()
        world.announce(versions[-1], late)
        await until(lambda: late.completed)
        assert late.relay.bytes_received(0) == 0
        assert origin.relay.bytes_received(0) == len(base.state), "nor does the learner send it with each version"


async def test_the_base_comes_from_a_mirror(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world, mirror_server(tmp_path / "served") as server:
        base = world.published(0)
        adapters = world.published(5, over=base)
        served = ChunkStore(tmp_path / "served", keep_versions=9)
        for one in (base, adapters):
            one.put(served)
        (a,) = await world.add("a", mirror={"addresses": (server.address,)})
        a.relay.apply_plan(pb.RelayPlan(plan_id=1))
        world.announce(adapters, a)
        await until(lambda: a.completed)
        assert a.state(0) == base.state
        await until(lambda: a.store.versions() == [0, 5])
        served.close()


async def test_the_base_comes_from_public_weights_on_the_peers_own_disk(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        base = world.published(0)
        adapters = world.published(5, over=base)
        link = {"upload_mbit_s_max": 0.4, "lan_exempt": False}  # its copy of the base would take longer than the disk's
        (origin,) = await world.add("origin", link=link)
        await world.push(adapters)
        path = tmp_path / "model.safetensors"
        path.write_bytes(as_safetensors(base))
        (a,) = await world.add("a", mirror={"addresses": (str(path),)})
        await world.plan(origin, a)
        world.announce(adapters, a)
        await until(lambda: a.completed)
        assert a.state(0) == base.state
        assert a.report.chunk_bytes_from_origin < len(adapters.state) + len(base.state) // 2


async def test_an_origin_with_a_new_disk_gets_the_base_with_the_next_version(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        base = world.published(0)
        await world.push(world.published(5, over=base))
        assert origin.store.versions() == [0, 5]
        assert origin.state(0) == base.state


# ---------------------------------------------------------------- mirrors, caps, probes


async def test_a_mirror_alone_is_enough(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world, mirror_server(tmp_path / "served") as server:
        published = world.published(0)
        served = ChunkStore(tmp_path / "served", 2)
        published.put(served)
        (a,) = await world.add("a", mirror={"addresses": (server.address,)})
        a.relay.apply_plan(pb.RelayPlan(plan_id=1))
        world.announce(published)
        await until(lambda: a.completed)
        assert a.state(0) == published.state
        served.close()


async def test_an_upload_cap_is_kept(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        bytes_per_second = 150_000
        link = {"upload_mbit_s_max": bytes_per_second * 8e-6, "lan_exempt": False}
        (origin,) = await world.add("origin", link=link)
        (a,) = await world.add("a")
        await world.plan(origin, a)
        published = world.published(0)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await world.publish(published)
        await until(lambda: a.completed)
        burst_bytes = bytes_per_second * 0.05
        assert loop.time() - begun_s > (len(published.state) - burst_bytes) / bytes_per_second


async def test_a_peer_that_may_not_send_still_receives(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a, b = await world.add("origin", "a", "b")
        a.relay.allow(NetworkGate(send=False, reason="this month's upload is used up"))
        await world.plan(origin, a, b)
        published = world.published(0)
        await world.push(published)
        world.announce(published)
        await until(lambda: a.completed and b.completed)
        assert a.report.chunk_bytes_sent == 0


async def test_a_paused_peer_has_no_links_until_it_resumes(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a")
        await world.plan(origin, a)
        await until(lambda: a.report.links)
        a.relay.allow(NetworkGate(send=False, receive=False, reason="paused by its owner"))
        await until(lambda: not a.report.links and not origin.report.links)
        published = world.published(0)
        await world.push(published)
        world.announce(published)
        a.relay.allow(NetworkGate())
        await until(lambda: a.completed)


async def test_a_link_that_was_dialled_before_a_pause_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dial = Transports.dial

    async def paused_meanwhile(transports: Transports, peer_id: PeerId, address: str, role: str) -> Link:
        link = await dial(transports, peer_id, address, role)
        a.relay.allow(NetworkGate(send=False, receive=False, reason="paused by its owner"))
        dialled.append(link)
        return link

    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a")
        dialled: list[Link] = []
        monkeypatch.setattr(Transports, "dial", paused_meanwhile)
        planning = asyncio.create_task(world.plan(origin, a))
        await until(lambda: dialled)
        await until(lambda: not a.relay._links and not origin.relay._links)
        monkeypatch.undo()
        a.relay.allow(NetworkGate())
        await planning


async def test_a_banned_peer_has_no_links_until_it_is_pardoned(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a, b = await world.add("origin", "a", "b")
        await world.plan(origin, a, b)
        for member in (origin, a):
            member.relay.keep_out(frozenset({b.peer_id}))
        await until(lambda: not b.report.links)
        published = world.published(0)
        await world.push(published)
        world.announce(published)
        await until(lambda: a.completed)
        assert not b.report.links
        assert not b.completed
        for member in (origin, a):
            member.relay.keep_out(frozenset())
        await until(lambda: b.completed)


async def test_a_probe_shows_in_the_report(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a")
        a.relay.probe(pb.Probe(probe_id=1, peer_id=origin.peer_id, bytes_max=1 << 20, seconds_max=1.0))
        await world.plan(origin, a)
        a.relay.probe(pb.Probe(probe_id=2, peer_id=origin.peer_id, bytes_max=1 << 20, seconds_max=1.0))
        a.relay.probe(pb.Probe(probe_id=3, peer_id=origin.peer_id, bytes_max=1 << 20, seconds_max=1.0))
        await until(lambda: a.report.uplink_probe_id)
        assert a.report.uplink_probe_id == 2, "without a link, or beside another one, a probe does nothing"


async def test_nothing_is_read_while_the_disk_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, told = threading.Event(), list[str]()
    write = StoredEncoding.write_verified

    def slow_write(stored: StoredEncoding, first: int, chunks: Sequence[bytes]) -> None:
        go_on.wait(10.0)
        write(stored, first, chunks)

    monkeypatch.setattr(
        "peer.relay.store_worker.ChunkMemory", partial(ChunkMemory, unstored_bytes_most=4 * CHUNK_BYTES)
    )
    monkeypatch.setattr(StoredEncoding, "write_verified", slow_write)
    monkeypatch.setattr(StreamLink, "pause_reading", lambda link: told.append(f"{link.role} pauses"))
    monkeypatch.setattr(StreamLink, "resume_reading", lambda link: told.append(f"{link.role} goes on"))
    async with relay_world(tmp_path) as world:
        (a,) = await world.add("a")
        origin, peer = await world.puppet("origin"), await world.puppet("peer")
        await world.plan(origin, a)
        published = world.published(0)
        link = origin.links[a.peer_id]
        origin.announce(link, published)
        await until(lambda: a.store.get(0))
        origin.send_chunks(link, published, range(CHUNKS), STRIPE)
        await until(lambda: told == ["origin pauses"])
        await peer.dial(a.peer_id, a.address)
        await until(lambda: told == ["origin pauses", "peer pauses"])
        go_on.set()
        await until(lambda: sorted(told[2:]) == ["origin goes on", "peer goes on"])
        world.announce(published)
        await until(lambda: a.completed)


# ---------------------------------------------------------------- before the signature


async def send_ahead(world: World, published: Published, state: bytes = b"") -> None:
    """Send all chunks of a version as the learner does before it has signed it."""
    origin, growth = world.members["origin"], Growth()
    growth.reached(len(published.state))
    credentials = world.run.credentials(world.learner.peer_id, "learner")
    link = await OriginLink.connect(origin.address, origin.peer_id, run_id=world.run.run_id, credentials=credentials)
    async with link:
        await link.send_ahead(Unsigned(published.version, state or published.state, CHUNK_BYTES, growth))


async def test_a_version_that_came_before_its_signature_is_not_sent_again(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin", link={"relay_on_arrival": True})
        a, b = await world.add("a", "b")
        await world.plan(origin, a, b)
        published = world.published(0)
        await send_ahead(world, published)
        await until(origin.store.draft_path.exists)
        assert origin.store.get(0) is None, "nothing is believed"
        assert a.relay.bytes_received(0) == b.relay.bytes_received(0) == 0, "no peer hears of it"
        await world.publish(published)
        await until(lambda: all_hold([a, b], 0))
        assert origin.relay.bytes_received(0) == 0, "after the announcement"
        assert origin.state(0) == a.state(0) == published.state


async def test_other_bytes_than_were_signed_are_received_anew(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        published = world.published(0)
        wrong = published.state[: 3 * CHUNK_BYTES] + bytes(len(published.state) - 3 * CHUNK_BYTES)
        await send_ahead(world, published, wrong)
        await world.publish(published)
        assert origin.state(0) == published.state
        assert origin.relay.bytes_received(0) == len(published.state) - 3 * CHUNK_BYTES


async def test_an_origin_that_restarts_receives_the_version_anew(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        published = world.published(0)
        await send_ahead(world, published)
        await until(origin.store.draft_path.exists)
        await origin.restart()
        assert not origin.store.draft_path.exists()
        await world.publish(published)
        assert origin.state(0) == published.state
        assert origin.relay.bytes_received(0) == len(published.state)


async def test_only_the_learner_sends_ahead_and_in_order(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        published = world.published(0)
        peer, learner = await world.puppet(), await world.puppet("learner")
        peer.send_chunks(await peer.dial(origin.peer_id, origin.address), published, range(3))
        learner.send_chunks(await learner.dial(origin.peer_id, origin.address), published, [0, 2])
        await until(lambda: learner.closed)
        assert learner.closed[0][1] == MalformedMessage.code
        await until(lambda: not origin.store.draft_path.exists())
        assert not peer.closed
        await world.publish(published)
        assert origin.state(0) == published.state


# ---------------------------------------------------------------- who may do what


async def test_only_the_learners_signature_counts(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        forged = Published(world.run.run_id, Identity.generate(), 0)
        with pytest.raises(WrongKey):
            origin.relay.announce(forged.announcement)
        puppet = await world.puppet("learner")
        link = await puppet.dial(origin.peer_id, origin.address)
        link.send(pb.LinkMessage(announcement=forged.announcement))
        await until(lambda: puppet.closed)
        assert puppet.closed[0][1] == WrongKey.code


async def test_the_origin_requests_unannounced_versions_only_from_the_learner(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        puppet = await world.puppet()
        link = await puppet.dial(origin.peer_id, origin.address)
        published = world.published(0)
        puppet.announce(link, published)
        link.send(pb.LinkMessage(want=pb.Want(version=0)))
        await until(lambda: puppet.of_kind("have"))
        assert puppet.of_kind("want") == puppet.of_kind("request") == []
        await world.push(published)


async def test_a_peer_accepts_no_link_from_the_learner(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (a,) = await world.add("a")
        puppet = await world.puppet("learner")
        with pytest.raises(RollcastError, match="refused"):
            await puppet.dial(a.peer_id, a.address)


async def test_another_runs_certificate_opens_nothing(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        stranger = Puppet(world, "peer", LinkRun(tmp_path, "run-2"))
        world.puppets.append(stranger)
        with pytest.raises(RollcastError):
            await stranger.dial(origin.peer_id, origin.address)
        assert origin.links == set()


async def test_a_link_that_closes_while_it_opens_is_discarded(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        (origin,) = await world.add("origin")
        puppet = await world.puppet()
        for _ in range(3):
            link = await puppet.dial(origin.peer_id, origin.address)
            link.close("")
        await until(lambda: len(puppet.closed) == 3)
        await until(lambda: not origin.links)


def test_ticks_come_less_often_on_a_full_processor() -> None:
    assert tick_pause_s(0.001, busy=True) == 0.05
    assert tick_pause_s(0.01, busy=True) == 0.1
    assert tick_pause_s(3.0, busy=True) == 0.25
    assert tick_pause_s(0.001, busy=False) == 0.25
