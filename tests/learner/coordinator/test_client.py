"""Test the learner's calls to the coordinator: batches, announcements, and reports of its state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from learner.coordinator.access import Access
from learner.coordinator.client import Batch, CoordinatorClient, NotReady, check_key
from learner.coordinator.reporter import StatusReporter
from rollcast.runtime.errors import (
    MalformedMessage,
    ProtocolMismatch,
    RollcastError,
    Unreachable,
    WaitTimedOut,
    WrongKey,
)
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.learner.scripted_run import LOOPBACK, Authority, Script, ScriptedCoordinator, World


@asynccontextmanager
async def client_of(world: World, authority: Authority, **changes: Any) -> AsyncIterator[CoordinatorClient]:
    place = authority.enrolment(f"{LOOPBACK}:{world.grpc_port}")

    async def fresh() -> Enrolment:
        return place

    values: dict[str, Any] = {"fresh": fresh, "reconnect_timeout_s": 5.0, "random": Random(0)} | changes
    client = CoordinatorClient(learner_public_key=authority.learner.public_key, **values)
    try:
        yield client
    finally:
        await client.close()


async def test_the_calls(world: World, authority: Authority, script: Script) -> None:
    async with client_of(world, authority) as client:
        info = await client.open()
        assert (info.steps, info.origin_address) == (script.steps, world.coordinator.origin_address)
        examples = await client.examples(3, flawed=False, cursor=40)
        assert [example.example_id for example in examples] == [40, 41, 42]
        held_out = await client.held_out(1000)
        assert len(held_out) == script.held_out
        completions = [pb.Completion(example_id=problem.example_id, token_ids=[2, 1]) for problem in held_out]
        scores = await client.score(completions)
        assert [score.example_id for score in scores] == [problem.example_id for problem in held_out]
        assert await client.next_batch(0, rollouts=4, wait_s=0.1) == NotReady("rollouts of a script")


async def test_a_list_that_takes_longer_than_one_call_comes_in_parts(
    world: World, authority: Authority, script: Script
) -> None:
    script.examples_in_time = [0, 1, 2]  # of the first three calls
    async with client_of(world, authority, reconnect_timeout_s=50.0) as client:
        await client.open()
        examples = await client.examples(6, flawed=False, cursor=10)
    assert [one.example_id for one in examples] == [10, 11, 12, 13, 14, 15]
    asked = world.coordinator.examples_asked
    assert [(cursor, count) for cursor, count, _ in asked] == [(10, 6), (10, 6), (11, 5), (13, 3)]
    first_s, second_s, third_s, _ = (timeout_s for _, _, timeout_s in asked)
    assert first_s < 31.0 < second_s < 51.0, "nothing came in the first call, so the second one has more time"
    assert third_s < 31.0


async def test_an_origin_that_joins_late_is_waited_for(world: World, authority: Authority) -> None:
    address, world.coordinator.origin_address = world.coordinator.origin_address, ""
    async with client_of(world, authority) as client:
        with pytest.raises(WaitTimedOut, match="the origin to join"):
            await client.wait_for_origin(0.3)
        world.coordinator.origin_address = address
        assert (await client.wait_for_origin(5.0)).origin_address == address


async def test_a_coordinator_that_comes_back_gets_a_new_certificate_if_ours_has_expired(
    world: World, authority: Authority
) -> None:
    address = f"{LOOPBACK}:{world.grpc_port}"
    first, renewed = authority.enrolment(address, lifetime_s=2.0), authority.enrolment(address)

    async def enrol() -> Enrolment:
        return renewed

    async with client_of(world, authority, fresh=Access(first, enrol).fresh) as client:
        await client.open()
        await asyncio.sleep(first.credentials.valid_for_s + 1.0)
        await client.open()  # open channels stay open
        await world.coordinator.stop()
        await world.coordinator.start(world.grpc_port)
        await client.open()


class ClosedStub:
    """A stub whose calls fail as grpc.aio's do when their channel is closed."""

    async def NextBatch(self, request: pb.BatchRequest, **_: float) -> AsyncIterator[pb.BatchPart]:
        raise asyncio.CancelledError
        yield pb.BatchPart()


async def test_a_call_that_was_cancelled_without_its_caller_is_repeated(world: World, authority: Authority) -> None:
    async with client_of(world, authority) as client:
        await client.open()
        client._channels.stub = ClosedStub()
        assert await client.next_batch(0, rollouts=4, wait_s=0.1) == NotReady("rollouts of a script")
        client._channels.stub = ClosedStub()
        await client.close()
        with pytest.raises(Unreachable):
            await client.next_batch(0, rollouts=4, wait_s=0.1)


async def test_a_coordinator_that_stays_away_is_an_error_in_time(world: World, authority: Authority) -> None:
    await world.coordinator.stop()
    async with client_of(world, authority, reconnect_timeout_s=0.5) as client:
        assert not client.was_away
        with pytest.raises(WaitTimedOut, match="the coordinator, opening"):
            await client.open()
        assert client.was_away
        await world.coordinator.start(world.grpc_port)
        client._reconnect_timeout_s = 20.0  # gRPC dials an address that refused again after seconds
        await client.open()
        assert not client.was_away


async def test_a_run_with_another_ca_is_refused_at_once(world: World, tmp_path: Path) -> None:
    async with client_of(world, Authority(tmp_path / "other")) as client:
        with pytest.raises(WrongKey):
            await client.open()


async def test_all_addresses_of_the_coordinator_are_tried_and_it_may_move(
    world: World, authority: Authority, tmp_path: Path
) -> None:
    stranger = ScriptedCoordinator(Authority(tmp_path / "other"), Script())
    spare = ScriptedCoordinator(authority, Script())
    ports = [await stranger.start(), await spare.start(), world.grpc_port]
    await spare.stop()
    first, *further = [f"{LOOPBACK}:{port}" for port in ports]
    place = replace(authority.enrolment(first), further=tuple(further))

    async def fresh() -> Enrolment:
        return place

    async with client_of(world, authority, fresh=fresh, reconnect_timeout_s=20.0) as client:
        await client.open()
        await world.coordinator.stop()
        await spare.start(ports[1])
        await asyncio.gather(client.open(), client.next_batch(0, rollouts=4, wait_s=0.1))
    await spare.stop()
    await stranger.stop()


class OtherProtocol(ScriptedCoordinator):
    async def OpenLearner(self, request: pb.LearnerHello, context: Any) -> pb.RunInfo:
        info = await super().OpenLearner(request, context)
        info.protocol.min = info.protocol.max = 99
        return info


class OddBatches(ScriptedCoordinator):
    """A coordinator that answers NextBatch with the given parts."""

    parts: tuple[pb.BatchPart, ...] = ()

    async def NextBatch(self, request: pb.BatchRequest, context: Any) -> AsyncIterator[pb.BatchPart]:
        for part in self.parts:
            yield part


async def test_a_newer_protocol_names_the_side_to_upgrade(authority: Authority, tmp_path: Path, world: World) -> None:
    other = OtherProtocol(authority, Script())
    world.grpc_port = await other.start()
    async with client_of(world, authority) as client:
        with pytest.raises(ProtocolMismatch) as caught:
            await client.open()
    assert "this side" in caught.value.fix
    await other.stop()


def header(step: int = 3, count: int = 2, unseen: int = 0) -> pb.BatchPart:
    return pb.BatchPart(header=pb.BatchHeader(step=step, ready=True, rollout_count=count, unseen_count=unseen))


ROLLOUT = pb.BatchPart(rollouts=[pb.TrainingRollout(rollout_id=1)])
UNSEEN = pb.BatchPart(unseen=[pb.TrainingRollout(rollout_id=9)])


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (ROLLOUT,),
        (header(), ROLLOUT),
        (header(count=3), ROLLOUT, ROLLOUT),
        (header(), ROLLOUT, ROLLOUT, ROLLOUT),
        (header(step=4), ROLLOUT, ROLLOUT),
        (header(), header(), ROLLOUT),
        (header(), ROLLOUT, ROLLOUT, UNSEEN),
        (header(unseen=9), ROLLOUT, ROLLOUT, UNSEEN, UNSEEN, UNSEEN),
    ],
)
async def test_odd_batches_are_refused(authority: Authority, world: World, parts: tuple[pb.BatchPart, ...]) -> None:
    other = OddBatches(authority, Script())
    other.parts = parts
    world.grpc_port = await other.start()
    async with client_of(world, authority) as client:
        with pytest.raises(MalformedMessage):
            await client.next_batch(3, rollouts=2, wait_s=0.1)
        other.parts = (header(), ROLLOUT, ROLLOUT)
        only = ROLLOUT.rollouts[0]
        assert await client.next_batch(3, rollouts=2, wait_s=0.1) == Batch(3, False, (only, only))
        other.parts = (header(unseen=1), ROLLOUT, ROLLOUT, UNSEEN)
        found = await client.next_batch(3, rollouts=2, wait_s=0.1)
        assert found == Batch(3, False, (only, only), unseen=(UNSEEN.unseen[0],))
    await other.stop()


async def test_a_failure_of_the_coordinator_is_passed_on(authority: Authority, world: World) -> None:
    world.coordinator.authority = None  # type: ignore[assignment]
    async with client_of(world, authority) as client:
        with pytest.raises(RollcastError, match="opening the learner's session"):
            await client.open()


def test_the_runs_key_must_be_ours() -> None:
    check_key(b"\1" * 32, b"\1" * 32)
    with pytest.raises(WrongKey, match="another key than ours"):
        check_key(b"\1" * 32, b"\2" * 32)


class Receiver:
    """A receiver of status reports in place of the coordinator."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, dict[str, float]]] = []
        self.failures = 0
        self.failure: Exception = Unreachable("away")
        self.came = asyncio.Condition()

    async def __call__(self, phase: str, detail: str, values: Mapping[str, float], profile: object) -> None:
        if self.failures:
            self.failures -= 1
            raise self.failure
        self.got.append((phase, detail, dict(values)))
        async with self.came:
            self.came.notify_all()

    async def until(self, phase: str) -> None:
        async with asyncio.timeout(10.0), self.came:
            await self.came.wait_for(lambda: bool(self.got) and self.got[-1][0] == phase)


async def test_the_newest_status_arrives_with_every_value() -> None:
    receiver = Receiver()
    async with StatusReporter(receiver) as reporter:
        reporter.update("warm_start", "step 50")
        reporter.update("evaluating", "before", reward_before=0.3)
        thread = threading.Thread(target=lambda: reporter.update("training", "step 1", warm_start_s=2.0))
        thread.start()
        thread.join()
        await receiver.until("training")
    assert receiver.got[-1] == ("training", "step 1", {"reward_before": 0.3, "warm_start_s": 2.0})


@pytest.mark.parametrize("failure", [Unreachable("away"), KeyError("a bug of ours")], ids=["away", "bug"])
async def test_the_next_status_makes_up_for_a_lost_one(failure: Exception) -> None:
    receiver = Receiver()
    receiver.failures, receiver.failure = 1, failure
    async with StatusReporter(receiver) as reporter:
        reporter.update("warm_start", "", reward_before=0.3)
        await asyncio.sleep(0)  # let the first attempt fail
        reporter.update("training")
        await receiver.until("training")
    assert receiver.got[-1][2] == {"reward_before": 0.3}


async def test_flush_comes_last() -> None:
    receiver = Receiver()
    async with StatusReporter(receiver) as reporter:
        for step in range(20):
            reporter.update("training", f"step {step}")
        reporter.update("finished", "done")
        await reporter.flush()
    assert receiver.got[-1][0] == "finished"
