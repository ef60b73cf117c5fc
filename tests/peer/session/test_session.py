"""Test the control stream with a scripted coordinator: real gRPC, mutual TLS, loopback."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from peer.session.session import REDIAL_SPREAD_MOST_S, Session, SessionSettings, refusal
from rollcast.runtime.errors import (
    JoinRefused,
    MalformedMessage,
    ProtocolMismatch,
    RollcastError,
    Unreachable,
    WrongKey,
)
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA
from rollcast.wire.joining.diagnose import failed_hop
from rollcast.wire.joining.grpc_client import open_channel
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb
from tests.open_sockets import connections_to
from tests.peer.scripted_coordinator import (
    LEARNER_KEY,
    RUN_ID,
    ScriptedCoordinator,
    peer_credentials,
    scripted_coordinator,
    welcome,
)


class Listener:
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self._changed = asyncio.Event()

    def opened(self, welcome: pb.Welcome) -> None:
        self._note("opened", welcome.software)

    def lost(self, reason: str) -> None:
        self._note("lost", reason)

    def received(self, message: pb.CoordinatorMessage) -> None:
        self._note("received", message.WhichOneof("body"))

    def _note(self, kind: str, detail: Any) -> None:
        self.events.append((kind, detail))
        self._changed.set()

    async def wait_for(self, kind: str, count: int = 1) -> None:
        async with deadline(10.0, f"{count} x {kind}"):
            while sum(event[0] == kind for event in self.events) < count:
                self._changed.clear()
                await self._changed.wait()


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(500):
        if is_so():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come true")


class Fixture:
    """A session under test, and its listener."""

    def __init__(
        self, coordinator: ScriptedCoordinator, *, addresses: tuple[str, ...] = (), ca: RunCA | None = None
    ) -> None:
        self.listener = Listener()
        self.heartbeats = 0
        credentials = peer_credentials(ca or coordinator.ca, Identity.generate())
        self.session = Session(
            SessionSettings(RUN_ID, LEARNER_KEY, addresses or (coordinator.address,), 5.0, 5.0),
            open_channel=lambda address: open_channel(address, credentials),
            failed_hop=lambda address: failed_hop(address, credentials.ssl_client_context(), reads_first=True),
            hello=lambda: pb.Hello(protocol=range_to_pb(), role="peer", name="a peer"),
            heartbeat=self._heartbeat,
            listener=self.listener,
            random=Random(0),
        )
        self.running = asyncio.create_task(self.session.run())

    def _heartbeat(self) -> pb.Heartbeat:
        self.heartbeats += 1
        return pb.Heartbeat(sequence=self.heartbeats, state="idle")

    async def error(self) -> RollcastError:
        with pytest.raises(RollcastError) as caught:
            async with asyncio.timeout(10.0):
                await self.running
        return caught.value


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[ScriptedCoordinator, Fixture]]:
    async with scripted_coordinator(folder) as coordinator:
        fixture = Fixture(coordinator)
        try:
            yield coordinator, fixture
        finally:
            fixture.running.cancel()
            with suppress(asyncio.CancelledError, RollcastError):
                await fixture.running


async def test_hello_then_welcome_then_heartbeats_at_the_requested_interval(tmp_path: Path) -> None:
    async with connected(tmp_path) as (coordinator, fixture):
        session = await coordinator.next_session()
        await fixture.listener.wait_for("opened")
        await session.expect("heartbeat", lambda beat: beat.sequence >= 3)
        assert session.kinds()[0] == "hello"
        assert set(session.kinds()[1:]) == {"heartbeat"}
        assert fixture.listener.events == [("opened", "scripted")]


async def test_heartbeats_report_how_late_the_event_loop_is(tmp_path: Path) -> None:
    async with connected(tmp_path) as (coordinator, fixture):
        session = await coordinator.next_session()
        await fixture.listener.wait_for("opened")
        await session.expect("heartbeat")
        time.sleep(0.5)  # noqa: ASYNC251  # as if this process were not scheduled
        await session.expect("heartbeat", lambda beat: beat.loop_lag_s > 0.3)


async def test_messages_go_both_ways(tmp_path: Path) -> None:
    async with connected(tmp_path) as (coordinator, fixture):
        session = await coordinator.next_session()
        await fixture.listener.wait_for("opened")
        fixture.session.send(pb.PeerMessage(work_request=pb.WorkRequest(free_slots=7)))
        assert (await session.expect("work_request")).free_slots == 7
        session.send(pb.CoordinatorMessage(relay_plan=pb.RelayPlan(plan_id=3)))
        await fixture.listener.wait_for("received")
        assert fixture.listener.events[-1] == ("received", "relay_plan")


async def test_a_lost_session_is_opened_again(tmp_path: Path) -> None:
    async with connected(tmp_path) as (coordinator, fixture):
        first = await coordinator.next_session()
        await fixture.listener.wait_for("opened")
        first.end()
        await fixture.listener.wait_for("lost")
        fixture.session.send(pb.PeerMessage(work_request=pb.WorkRequest(free_slots=1)))
        fixture.session.send(pb.PeerMessage(accusation=pb.Accusation(version=4)))
        second = await coordinator.next_session()
        await second.expect("accusation")
        assert "work_request" not in second.kinds()


async def test_the_members_of_a_large_run_do_not_all_dial_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they lose their sessions together, each dials after a random part of the time that it was told."""
    pauses, asked_s = list[float](), [0.0, 40.0, math.nan, 1e9]

    async def pause(_: Session, seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(Session, "_pause", pause)
    async with connected(tmp_path) as (coordinator, fixture):
        fixture.session._settings = replace(fixture.session._settings, reconnect_timeout_s=None)
        for count, spread_s in enumerate(asked_s, start=1):
            session = await coordinator.next_session(welcome(redial_spread_s=spread_s))
            await fixture.listener.wait_for("opened", count)
            session.end()
            await fixture.listener.wait_for("lost", count)
        await until(lambda: len(pauses) >= len(asked_s))
    assert pauses[0] <= 0.2
    assert pauses[2] <= 0.2
    assert 0.2 < pauses[1] <= 40.0
    assert 0.2 < pauses[3] <= REDIAL_SPREAD_MOST_S


@pytest.mark.parametrize("code", ["OK", "CANCELLED", "UNKNOWN", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED"])
async def test_a_stream_that_ends_without_stop_is_opened_again(tmp_path: Path, code: str) -> None:
    async with connected(tmp_path) as (coordinator, fixture):
        session = await coordinator.next_session()
        await fixture.listener.wait_for("opened")
        session.end(grpc.StatusCode[code])
        again = await coordinator.next_session()
        await again.expect("hello")
        await fixture.listener.wait_for("opened", 2)


async def test_a_session_that_ends_before_its_welcome_is_retried(tmp_path: Path) -> None:
    async with connected(tmp_path) as (coordinator, fixture):
        session = await coordinator.next_session()
        await fixture.listener.wait_for("opened")
        coordinator.hang_ups = 2
        session.end()
        await coordinator.next_session()
        await fixture.listener.wait_for("opened", 2)
        assert coordinator.hang_ups == 0


async def test_a_session_whose_write_times_out_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout cancels the call, which the call's reader must not mistake for a shutdown of this process."""
    monkeypatch.setattr("peer.session.session.WRITE_TIMEOUT_S", 0.5)
    async with connected(tmp_path) as (coordinator, fixture):
        session = await coordinator.next_session()
        await fixture.listener.wait_for("opened")
        session.reads.clear()
        for _ in range(20):  # more than the connection holds
            fixture.session.send(pb.PeerMessage(accusation=pb.Accusation(reason="x" * 3_000_000)))
        await fixture.listener.wait_for("lost")
        assert fixture.listener.events[-1] == ("lost", "waited 0.5 s for the coordinator to accept a message")
        await (await coordinator.next_session()).expect("heartbeat")


async def test_a_coordinator_that_restarts_is_found_again(tmp_path: Path) -> None:
    async with connected(tmp_path) as (coordinator, fixture):
        await coordinator.next_session()
        await fixture.listener.wait_for("opened")
        await coordinator.stop()
        await fixture.listener.wait_for("lost")
        await coordinator.start(int(coordinator.address.rpartition(":")[2]))
        await coordinator.next_session()
        await fixture.listener.wait_for("opened", 2)


async def test_stop_ends_the_session_in_order(tmp_path: Path) -> None:
    async with connected(tmp_path) as (coordinator, fixture):
        session = await coordinator.next_session()
        session.send(pb.CoordinatorMessage(stop=pb.Stop(reason="the run is finished")))
        await fixture.listener.wait_for("received")
        await fixture.session.close("the run is finished")
        await fixture.running
        assert (await session.expect("goodbye")).reason == "the run is finished"


async def test_a_coordinator_that_hangs_up_after_stop_is_not_dialled_again(tmp_path: Path) -> None:
    async with connected(tmp_path) as (coordinator, fixture):
        session = await coordinator.next_session()
        session.send(pb.CoordinatorMessage(stop=pb.Stop(reason="the run is finished")))
        session.end()
        async with asyncio.timeout(5.0):
            await fixture.running
        assert fixture.listener.events[-1][0] == "lost"


async def tell_to_stop(coordinator: ScriptedCoordinator) -> None:
    """Answer every session with the end of the run: gRPC may lose an answer that comes while the peer still writes."""
    while True:
        session = await coordinator.next_session(pb.CoordinatorMessage(stop=pb.Stop(reason="the run is finished")))
        session.end()


async def test_a_peer_that_was_away_when_the_run_ended_stops_in_order(tmp_path: Path) -> None:
    async with connected(tmp_path) as (coordinator, fixture):
        (await coordinator.next_session()).end()
        telling = asyncio.create_task(tell_to_stop(coordinator))
        async with asyncio.timeout(5.0):
            await fixture.running
        telling.cancel()
        assert fixture.listener.events[-1] == ("received", "stop")


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (pb.CoordinatorMessage(refused=pb.Refused(code="RC204", what="too old", fix="upgrade")), ProtocolMismatch),
        (pb.CoordinatorMessage(refused=pb.Refused(code="RC301", what="revoked")), JoinRefused),
        (welcome(run_id="another-run"), WrongKey),
        (welcome(learner_public_key=bytes(32)), WrongKey),
        (welcome(protocol=pb.ProtocolRange(min=90, max=91)), ProtocolMismatch),
        (welcome(heartbeat_interval_s=0.0), MalformedMessage),
        (pb.CoordinatorMessage(leases=pb.Leases()), MalformedMessage),
    ],
    ids=["protocol", "revoked", "run", "learner-key", "range", "interval", "no-welcome"],
)
async def test_a_refusal_ends_the_session_with_its_error(
    tmp_path: Path, first: pb.CoordinatorMessage, error: type[RollcastError]
) -> None:
    async with connected(tmp_path) as (coordinator, fixture):
        await coordinator.next_session(first)
        assert isinstance(await fixture.error(), error)


def test_an_unknown_code_is_a_refusal_all_the_same() -> None:
    error = refusal(pb.Refused(code="RC999", what="no", fix="ask"))
    assert isinstance(error, JoinRefused)
    assert (error.what, error.fix) == ("no", "ask")


async def test_a_coordinator_that_is_not_there_is_given_up_after_the_join_timeout(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        address = coordinator.address
        await coordinator.stop()
        session = lone_session(coordinator, (address,), 0.5)
        with pytest.raises(Unreachable, match=f"no session with the coordinator at {address} for 0.5 s") as caught:
            await session.run()
        assert f"connection: {address} refuses the connection" in caught.value.cause


def lone_session(coordinator: ScriptedCoordinator, addresses: tuple[str, ...], timeout_s: float | None) -> Session:
    credentials = peer_credentials(coordinator.ca, Identity.generate())
    return Session(
        SessionSettings(RUN_ID, LEARNER_KEY, addresses, timeout_s, timeout_s),
        open_channel=lambda address: open_channel(address, credentials),
        failed_hop=lambda address: failed_hop(address, credentials.ssl_client_context(), reads_first=True),
        hello=lambda: pb.Hello(protocol=range_to_pb()),
        heartbeat=pb.Heartbeat,
        listener=Listener(),
        random=Random(0),
    )


async def test_without_a_bound_the_coordinator_is_looked_for_at_all_addresses_until_it_is_there(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        await coordinator.stop()
        session = lone_session(coordinator, ("no-such-host.invalid:7400", "127.0.0.1:1", coordinator.address), None)
        running = asyncio.create_task(session.run())
        await until(lambda: len(session.search.problems()) == 3)
        assert [hop.hop for hop in session.search.problems()] == ["name lookup", "connection", "connection"]
        await coordinator.start(int(coordinator.address.rpartition(":")[2]))
        opened = await coordinator.next_session()
        await opened.expect("heartbeat")
        assert session.search.current == coordinator.address
        assert session.search.problems() == []
        await session.close("done")
        await running


async def test_a_refusal_is_a_failure_of_the_session_hop(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        coordinator.hang_ups = 1000
        session = lone_session(coordinator, (coordinator.address,), 1.0)
        with pytest.raises(Unreachable) as caught:
            await session.run()
        assert caught.value.cause.startswith(f"session of {coordinator.address}: ")
        assert "read the coordinator's log" in caught.value.fix


async def test_a_coordinator_of_another_run_ca_gets_no_session(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        stranger = RunCA.create(tmp_path / "other-ca", RUN_ID)
        fixture = Fixture(coordinator, ca=stranger)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):
                await coordinator.sessions.get()
        await until(lambda: bool(fixture.session.search.problems()))
        assert fixture.session.search.problems()[0].hop == "certificate"
        fixture.running.cancel()
        assert fixture.listener.events == []


async def test_sessions_that_ended_leave_no_connection_behind(tmp_path: Path) -> None:
    gc.disable()  # a connection that waits for a full collection may wait for hours
    try:
        async with connected(tmp_path) as (coordinator, fixture):
            for count in range(1, 4):
                session = await coordinator.next_session()
                await fixture.listener.wait_for("opened", count)
                session.end(grpc.StatusCode.UNAVAILABLE)
                await fixture.listener.wait_for("lost", count)
            await coordinator.next_session()
            await fixture.listener.wait_for("opened", 4)
            await until(lambda: connections_to(coordinator.address) == 1)
    finally:
        gc.enable()


def announces_answers() -> pb.CoordinatorMessage:
    return welcome(answer_s=0.1)


async def test_a_silent_coordinator_is_left_once_another_one_answers(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as first:
        second = ScriptedCoordinator(first.ca)
        await second.start()
        address = second.address
        await second.stop()  # a standby that does not lead yet
        fixture = Fixture(first, addresses=(first.address, address))
        try:
            session = await first.next_session(announces_answers())
            beat = await session.expect("heartbeat")
            await session.expect("heartbeat", lambda one: one.sequence > beat.sequence + 20)
            assert not session.ended.is_set(), "nobody else answers"
            second = ScriptedCoordinator(first.ca)
            await second.start(int(address.rpartition(":")[2]))
            await second.next_session()
            await fixture.listener.wait_for("opened", 2)
            (lost,) = [detail for kind, detail in fixture.listener.events if kind == "lost"]
            assert f"{first.address} does not answer heartbeats" in lost
        finally:
            await second.stop()
            fixture.running.cancel()
            with suppress(asyncio.CancelledError, RollcastError):
                await fixture.running


async def test_a_coordinator_that_answers_keeps_its_sessions(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as first:
        second = ScriptedCoordinator(first.ca)
        await second.start()
        fixture = Fixture(first, addresses=(first.address, second.address))
        try:
            session = await first.next_session(announces_answers())
            for sequence in range(1, 21):
                await session.expect("heartbeat", lambda one, sequence=sequence: one.sequence == sequence)  # type: ignore[misc]
                session.send(pb.CoordinatorMessage(heartbeat_answer=pb.HeartbeatAnswer(sequence=sequence)))
            assert fixture.listener.events == [("opened", "scripted")], "answers concern the session alone"
        finally:
            await second.stop()
            fixture.running.cancel()
            with suppress(asyncio.CancelledError, RollcastError):
                await fixture.running
