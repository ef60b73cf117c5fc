"""Test whole peers: real session, relay and store; a scripted coordinator and an engine without a model."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from peer.config import PeerConfig
from peer.engines.base import Engine
from peer.service import run
from peer.session.renewal import Renewal
from rollcast.runtime.errors import MalformedMessage, RollcastError, StoreError, Unreachable
from rollcast.wire.donor.control_socket import request
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import RunId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.versions.stored_encoding import StoredEncoding
from tests.peer.engines.fake_engine import FakeEngine
from tests.peer.joined_peer import joined_config, keep_version, welcome_to
from tests.peer.relay.relay_world import disk_full, push_version, until
from tests.peer.scripted_coordinator import (
    RUN_ID,
    ScriptedCoordinator,
    ScriptedSession,
    leases,
    peer_credentials,
    scripted_coordinator,
)
from tests.peer.versions import LEARNER, Published, announcement_of
from tests.peer.worker.core.worker_samples import grant

WELCOME = welcome_to(RUN_ID)


@dataclass
class Process:
    """One peer's run() as a task, with the parts that tests need."""

    config: PeerConfig
    identity: Identity
    engine: FakeEngine
    stop: asyncio.Event
    running: asyncio.Task[int]

    async def status(self) -> int:
        return await asyncio.wait_for(self.running, 10.0)


def start(config: PeerConfig) -> Process:
    engine, stop = FakeEngine(), asyncio.Event()

    def engine_factory(_: PeerConfig) -> Engine:
        return engine

    running = asyncio.create_task(run(config, stop, engine_factory=engine_factory))
    return Process(config, Identity.load(config.state_folder / "identity.key"), engine, stop, running)


async def error_of(config: PeerConfig, **arguments: Any) -> RollcastError:
    with pytest.raises(RollcastError) as caught:
        await asyncio.wait_for(run(config, asyncio.Event(), **arguments), 10.0)
    return caught.value


def plan_with_neighbour(other: Process, address: str, role: str) -> pb.CoordinatorMessage:
    neighbour = pb.PlanNeighbour(peer_id=other.identity.peer_id, role=role, address=address, we_dial=True)
    return pb.CoordinatorMessage(relay_plan=pb.RelayPlan(plan_id=1, neighbours=[neighbour]))


async def begin_working(
    coordinator: ScriptedCoordinator, folder: Path, **changes: Any
) -> tuple[Process, ScriptedSession]:
    """Start a peer that holds version 2 from an earlier process, and wait until it requests work."""
    config = joined_config(folder, coordinator, **changes)
    keep_version(folder, 2)
    process = start(config)
    session = await coordinator.next_session(WELCOME)
    session.send(pb.CoordinatorMessage(announcement=announcement_of(2)))
    await session.expect("work_request")
    return process, session


async def test_a_version_goes_from_the_origin_to_a_peer_which_then_generates(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        origin_config = joined_config(tmp_path / "origin", coordinator, "origin")
        keep_version(origin_config.state_folder, 1)
        origin = start(origin_config)
        origin_session = await coordinator.next_session(WELCOME)
        origin_hello = await origin_session.expect("hello")
        assert list(origin_hello.held_versions) == [1]
        assert origin_hello.concurrent_rollouts == 0

        peer = start(joined_config(tmp_path / "peer", coordinator))
        session = await coordinator.next_session(WELCOME)
        session.send(plan_with_neighbour(origin, origin_hello.advertise, "origin"))
        session.send(pb.CoordinatorMessage(announcement=announcement_of(1)))
        assert (await session.expect("version_held")).version == 1
        assert (await session.expect("work_request")).free_slots == 8
        assert peer.engine.expected[0].prompt_tokens_max == 16
        session.send(leases(grant(1, 4), grant(2, 4)))
        beat = await session.expect("heartbeat", lambda beat: beat.tokens_generated > 0)
        assert (beat.has_active_version, beat.active_version) == (True, 1)
        assert beat.chunk_bytes_from_origin > 40_000
        await session.expect("work_request", lambda request: request.free_slots == 8)

        for process in (peer, origin):
            process.stop.set()
            assert await process.status() == 0
        assert {(item.lease_id, item.sample_index) for item in coordinator.uploaded} == {
            (lease_id, index) for lease_id in (1, 2) for index in range(4)
        }
        assert (await session.expect("goodbye")).reason == "stopped by a signal"


async def test_a_peer_that_returns_begins_with_the_version_on_its_disk(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        process, session = await begin_working(coordinator, tmp_path / "peer")
        assert list((await session.expect("hello")).held_versions) == [2]
        assert process.engine.active_version == 2
        process.stop.set()
        assert await process.status() == 0


async def publish_and_receive(coordinator: ScriptedCoordinator, folder: Path, version: int) -> None:
    """Let an origin and a peer join the coordinator's run, and publish a version that both receive."""
    run_id, ca = coordinator.ca.run_id, coordinator.ca
    origin = start(joined_config(folder / "origin", coordinator, "origin"))
    origin_session = await coordinator.next_session(welcome_to(run_id))
    hello = await origin_session.expect("hello")
    peer = start(joined_config(folder / "peer", coordinator))
    session = await coordinator.next_session(welcome_to(run_id))
    assert list(hello.held_versions) == list((await session.expect("hello")).held_versions) == []

    published = Published(run_id, LEARNER, version)
    credentials = peer_credentials(ca, LEARNER, "learner")
    async with asyncio.timeout(10.0):
        await push_version(published, origin.identity.peer_id, hello.advertise, credentials)
    origin_session.send(pb.CoordinatorMessage(announcement=published.announcement))
    assert (await origin_session.expect("version_held")).version == version
    session.send(plan_with_neighbour(origin, hello.advertise, "origin"))
    session.send(pb.CoordinatorMessage(announcement=published.announcement))
    assert (await session.expect("version_held")).version == version
    for process in (peer, origin):
        process.stop.set()
        assert await process.status() == 0


async def test_a_state_folder_of_an_earlier_run_serves_the_next_one(tmp_path: Path) -> None:
    for run_id, version in ((RunId("run-0"), 50), (RUN_ID, 0), (RunId("run-2"), 0)):
        async with scripted_coordinator(tmp_path, run_id) as coordinator:
            await publish_and_receive(coordinator, tmp_path, version)
        for role in ("origin", "peer"):
            left = sorted(path.name for path in (tmp_path / role / "versions").iterdir())
            assert left == [run_id], "the disk does not fill up with runs that are over"


async def test_a_stopped_peer_uploads_returns_leases_and_ends_within_two_seconds(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        process, session = await begin_working(coordinator, tmp_path / "peer")
        process.engine.released.clear()
        session.send(leases(grant(1, 4), grant(2, 4)))
        await session.expect("heartbeat", lambda beat: beat.state == "generating")
        begun_s = time.monotonic()
        process.stop.set()
        assert await process.status() == 0
        assert time.monotonic() - begun_s < 2.0
        returned = [item.lease_return.lease_ids for item in session.received if item.HasField("lease_return")]
        assert returned == [[2], [1]], "the second once its slice took too long"
        assert session.kinds()[-1] == "goodbye"


async def test_the_coordinators_stop_ends_the_peer_with_status_0(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        process, session = await begin_working(coordinator, tmp_path / "peer")
        session.send(pb.CoordinatorMessage(stop=pb.Stop(reason="the run is finished")))
        session.end()
        assert await process.status() == 0


async def test_a_session_that_ends_without_stop_is_resumed_with_the_leases_held(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        process, session = await begin_working(coordinator, tmp_path / "peer")
        process.engine.released.clear()
        session.send(leases(grant(1, 4), grant(2, 4)))
        await session.expect("heartbeat", lambda beat: beat.state == "generating")
        session.end()
        again = await coordinator.next_session(WELCOME)
        assert list((await again.expect("hello")).held_versions) == [2]
        assert (await again.expect("version_held")).version == 2
        process.engine.released.set()
        await again.expect("work_request", lambda request: request.free_slots == 8)
        again.send(pb.CoordinatorMessage(stop=pb.Stop(reason="the run is finished")))
        assert await process.status() == 0
        assert {(item.lease_id, item.sample_index) for item in coordinator.uploaded} == {
            (lease_id, index) for lease_id in (1, 2) for index in range(4)
        }
        assert "lease_return" not in session.kinds() + again.kinds(), "nothing held was given up"


async def test_nonsense_from_the_coordinator_is_dropped_and_work_continues(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        process, session = await begin_working(coordinator, tmp_path / "peer")
        forged = announcement_of(3, Identity.generate())
        session.send(pb.CoordinatorMessage(announcement=forged))
        session.send(pb.CoordinatorMessage(leases=pb.Leases(leases=[pb.Lease(lease_id=9)])))
        session.send(leases(grant(1, 4)))
        await session.expect("heartbeat", lambda beat: beat.tokens_generated > 0)
        assert process.engine.active_version == 2
        process.stop.set()
        assert await process.status() == 0


async def test_a_coordinator_unreachable_for_too_long_is_one_clear_error(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        config = joined_config(tmp_path / "peer", coordinator, reconnect_timeout_s=0.3)
        process = start(config)
        session = await coordinator.next_session(WELCOME)
        await session.expect("heartbeat")  # the session is open
        await coordinator.stop()
        with pytest.raises(Unreachable, match="no session with the coordinator"):
            await process.status()


async def test_a_full_disk_is_reported_in_the_heartbeat_and_ends_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        origin_config = joined_config(tmp_path / "origin", coordinator, "origin")
        keep_version(origin_config.state_folder, 12)
        origin = start(origin_config)
        address = (await (await coordinator.next_session(WELCOME)).expect("hello")).advertise
        monkeypatch.setattr(StoredEncoding, "write_verified", disk_full)
        peer = start(joined_config(tmp_path / "peer", coordinator, store={"retry_s": 0.2, "give_up_s": 0.5}))
        session = await coordinator.next_session(WELCOME)
        session.send(plan_with_neighbour(origin, address, "origin"))
        session.send(pb.CoordinatorMessage(announcement=announcement_of(12)))
        beat = await session.expect("heartbeat", lambda beat: "disk full" in beat.reason)
        assert beat.reason.startswith("cannot store version 12: disk full: ")
        with pytest.raises(StoreError) as error:
            await peer.status()
        assert (error.value.code, "free some space" in error.value.fix) == ("RC401", True)
        assert "cannot store version 12" in (await session.expect("goodbye")).reason
        origin.stop.set()
        assert await origin.status() == 0


async def shown_certificate(coordinator: ScriptedCoordinator, address: str) -> bytes:
    """Return the certificate, as DER, that a process shows when a chunk link is opened to it."""
    host, _, port = address.rpartition(":")
    context = peer_credentials(coordinator.ca, LEARNER, "learner").ssl_client_context()
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(certificate, bytes)
        return certificate
    finally:
        writer.close()


async def test_a_renewed_certificate_is_shown_on_new_chunk_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = asyncio.Event()
    monkeypatch.setattr(Renewal, "due_in_s", property(lambda _: -1.0 if due.is_set() else 0.02))
    async with scripted_coordinator(tmp_path) as coordinator:
        origin = start(joined_config(tmp_path / "origin", coordinator, "origin"))
        session = await coordinator.next_session(WELCOME)
        await session.expect("heartbeat")
        due.set()
        request = await session.expect("certificate_request")
        due.clear()
        fresh = coordinator.ca.issue(
            request.csr_pem, peer_id=origin.identity.peer_id, role="origin", lifetime_s=90_000.0
        )
        session.send(pb.CoordinatorMessage(certificate=pb.Certificate(certificate_pem=fresh)))
        address = (await session.expect("hello")).advertise
        async with asyncio.timeout(10.0):
            while await shown_certificate(coordinator, address) != ssl.PEM_cert_to_DER_cert(fresh.decode()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        origin.stop.set()
        assert await origin.status() == 0


ORIGIN_WITHOUT_JAX = """
import asyncio, sys
from peer.config import PeerConfig
from peer.service import run
config = PeerConfig.model_validate_json(sys.argv[1])
async def main():
    return await run(config, asyncio.Event())
assert asyncio.run(main()) == 0
found = sorted({name.split(".")[0] for name in sys.modules} & {"jax", "jaxlib", "flax", "optax"})
assert not found, found
"""


async def test_the_origin_never_imports_jax(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        config = joined_config(tmp_path / "origin", coordinator, "origin")
        as_json = json.dumps({**config.model_dump(mode="json"), "invite": config.invite.get_secret_value()})
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ORIGIN_WITHOUT_JAX, as_json, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(30.0):
            session = await coordinator.next_session(WELCOME)
            session.send(pb.CoordinatorMessage(stop=pb.Stop(reason="the run is finished")))
            _, stderr = await process.communicate()
        assert process.returncode == 0, stderr.decode()


async def test_work_is_requested_once_the_tokenizer_for_stop_strings_is_loaded(tmp_path: Path) -> None:
    letters = Tokenizer((), "abcdefghijklmnopqrstuvwxyz0123456789")
    stopping = welcome_to(RUN_ID, tokenizer_json=letters.to_json())
    stopping.welcome.sampling.stop_strings.append("a")
    async with scripted_coordinator(tmp_path) as coordinator:
        keep_version(tmp_path / "peer", 2)
        peer = start(joined_config(tmp_path / "peer", coordinator))
        session = await coordinator.next_session(stopping)
        session.send(pb.CoordinatorMessage(announcement=announcement_of(2)))
        await session.expect("work_request", lambda asked: asked.free_slots > 0)
        session.send(leases(grant(1, 4, stop_strings=("a",), stop_token_ids=(), max_new_tokens=64)))
        async with asyncio.timeout(10.0):
            while len(coordinator.uploaded) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        texts = [letters.decode(rollout.completion_token_ids) for rollout in coordinator.uploaded]
        ended = [text for text, one in zip(texts, coordinator.uploaded, strict=True) if one.finish_reason == "stop"]
        assert ended
        assert all(text.index("a") == len(text) - 1 for text in ended)
        peer.stop.set()
        assert await peer.status() == 0


async def test_an_invalid_tokenizer_ends_the_peer_with_its_reason(tmp_path: Path) -> None:
    stopping = welcome_to(RUN_ID, tokenizer_json="no json")
    stopping.welcome.sampling.stop_strings.append("a")
    async with scripted_coordinator(tmp_path) as coordinator:
        peer = start(joined_config(tmp_path / "peer", coordinator))
        await coordinator.next_session(stopping)
        with pytest.raises(MalformedMessage, match="tokenizer"):
            await peer.status()


async def asked(process: Process, do: str, **values: Any) -> dict[str, Any]:
    return await asyncio.to_thread(request, process.config.state_folder, {"do": do, **values})


async def test_an_owner_pauses_and_resumes_by_command(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        process, session = await begin_working(coordinator, tmp_path / "peer")
        session.send(leases(grant(1, 4)))
        await until(lambda: list((process.config.state_folder / "receipts").glob("*.jsonl")))
        assert await asked(process, "pause") == {"state": "paused", "reason": "paused by its owner"}
        await session.expect("work_request", lambda work: work.free_slots == 0)
        await session.expect("heartbeat", lambda beat: beat.state == "paused")
        report = await asked(process, "status")
        assert (report["state"], report["version_active"], report["connected"]) == ("paused", 2, True)
        assert report["today"] == report["total"] == {"accepted": 4}
        stopped = await session.expect("heartbeat", lambda beat: beat.sending_stopped)
        assert stopped.receiving_stopped
        session.send(pb.CoordinatorMessage(announcement=announcement_of(3)))
        session.received.clear()
        assert (await asked(process, "resume"))["state"] == "on"
        await session.expect("heartbeat", lambda beat: beat.receiving_version == 3 and not beat.sending_stopped)
        await session.expect("work_request", lambda work: work.free_slots == 8)
        process.stop.set()
        assert await process.status() == 0


async def test_an_owner_lets_a_peer_finish_its_work(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        process, session = await begin_working(coordinator, tmp_path / "peer")
        process.engine.released.clear()
        session.send(leases(grant(1, 4)))
        await session.expect("heartbeat", lambda beat: beat.state == "generating")
        assert (await asked(process, "finish"))["state"] == "finishing"
        await session.expect("heartbeat", lambda beat: beat.state == "finishing")
        process.engine.released.set()
        assert await process.status() == 0
        assert len(coordinator.uploaded) == 4
        assert (await session.expect("goodbye")).reason == "its owner asked it to finish"


async def test_a_peer_has_time_to_finish_after_sigterm(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        process, session = await begin_working(coordinator, tmp_path / "peer", drain_s=30.0)
        process.engine.released.clear()
        session.send(leases(grant(1, 4)))
        await session.expect("heartbeat", lambda beat: beat.state == "generating")
        process.stop.set()
        await session.expect("heartbeat", lambda beat: beat.state == "finishing")
        process.engine.released.set()
        assert await process.status() == 0
        assert [item.finish_reason != "interrupted" for item in coordinator.uploaded] == [True] * 4
        assert session.kinds()[-1] == "goodbye"


async def test_a_peer_reports_its_instance_and_learns_of_a_newer_release(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        config = joined_config(tmp_path / "peer", coordinator, public_name="Ada's attic")
        process = start(config)
        session = await coordinator.next_session(welcome_to(RUN_ID, software="rollcast 999.0.0 (commit 1a2b3c4)"))
        hello = await session.expect("hello")
        assert hello.public_name == "Ada's attic"
        assert hello.instance_id in (config.state_folder / "instance.json").read_text()
        await session.expect("heartbeat")
        newer = (await asked(process, "status"))["newer_release"]
        assert newer["theirs"] == "999.0.0"
        process.stop.set()
        assert await process.status() == 0


async def test_limits_change_while_a_peer_runs(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        process, session = await begin_working(coordinator, tmp_path / "peer")
        reply = await asked(process, "limits", set={"upload_mbit_s_max": 3, "disk_free_gib_min": 1e9})
        assert reply["changed"] == ["disk_free_gib_min", "upload_mbit_s_max"]
        report = await asked(process, "status")
        assert report["limits"]["upload_mbit_s_max"] == 3.0
        await session.expect("heartbeat", lambda beat: beat.state == "resting")
        await asked(process, "limits", reset=True)
        assert (await asked(process, "status"))["state"] != "resting"
        process.stop.set()
        assert await process.status() == 0


async def test_a_machine_leaves_the_run_and_its_state_is_removed(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        process, session = await begin_working(coordinator, tmp_path / "peer")
        session.send(leases(grant(1, 4)))
        await until(lambda: list((process.config.state_folder / "receipts").glob("*.jsonl")))
        assert (await asked(process, "page"))["url"].startswith("http://127.0.0.1:")
        assert (await asked(process, "leave"))["state"] == "finishing"
        assert await process.status() == 0
        left = {path.name for path in process.config.state_folder.iterdir()}
        assert left == {"donor.json", "identity.key", "instance.json", "receipts"}
