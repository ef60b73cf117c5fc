"""Test the coordinator as a whole, over real gRPC and HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import grpc
import pytest
from structlog.testing import capture_logs

from coordinator import service
from coordinator.assembly import check
from coordinator.config.config import CoordinatorConfig
from coordinator.recovery.resume import BATCH_SHAPE, LEARNER_FINISHED
from coordinator.stores.sqlite import Ledger, SqliteEngine
from rollcast.runtime.errors import ConfigError, NoPeers, RunFolderError, StoreError, WaitTimedOut
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.identity.identity import Identity
from rollcast.wire.joining.grpc_client import translate
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.text.tokenizer import Tokenizer
from tests.coordinator.running import WAIT_S, Member, Running, answer, changed, config_for, rollout, running, version


async def open_run(learner: Member, coordinator: Running) -> pb.RunInfo:
    public_key = coordinator.learner_identity.public_key
    hello = pb.LearnerHello(protocol=range_to_pb(), learner_public_key=public_key)
    info: pb.RunInfo = await learner.stub.OpenLearner(hello)
    return info


async def fetch_batch(learner: Member, step: int) -> list[pb.BatchPart]:
    return [part async for part in learner.stub.NextBatch(pb.BatchRequest(step=step, wait_s=20))]


async def take_leases(peer: Member, slots: int) -> list[pb.Lease]:
    """Hold version 0, request work, and wait until this many slots have arrived."""
    await peer.say(version_held=pb.VersionHeld(epoch=0, version=0))
    await peer.say(work_request=pb.WorkRequest(free_slots=slots))
    leases: list[pb.Lease] = []
    while sum(len(lease.slots) for lease in leases) < slots:
        leases += (await peer.next("leases")).leases
    return leases


async def upload(peer: Member, rollouts: list[pb.Rollout]) -> list[tuple[bool, str]]:
    call = peer.stub.UploadRollouts()
    for one in rollouts:
        await call.write(pb.RolloutUpload(rollouts=[one]))
    await call.done_writing()
    return [(verdict.accepted, verdict.reason) async for reply in call for verdict in reply.verdicts]


def answers(peer: Member, info: pb.RunInfo, leases: list[pb.Lease]) -> list[pb.Rollout]:
    tokenizer = Tokenizer.from_json(info.tokenizer_json)
    return [
        rollout(lease, slot, peer.enrolment.peer_id, answer(tokenizer, lease, right=slot.sample_index == 0))
        for lease in leases
        for slot in lease.slots
    ]


async def work(peer: Member, info: pb.RunInfo, slots: int = 4) -> None:
    """Take leases and answer the first slot of each group correctly."""
    rollouts = answers(peer, info, await take_leases(peer, slots))
    assert await upload(peer, rollouts) == [(True, "")] * slots
    assert await upload(peer, rollouts[:1]) == [(True, "")]  # as after a lost answer: the same upload again
    forged = pb.Rollout()
    forged.CopyFrom(rollouts[0])
    forged.fencing_token += 1000
    forged.lease_id += 1000
    assert await upload(peer, [forged, pb.Rollout(lease_id=1)]) == [(False, "fenced"), (False, "fenced")]


async def test_one_step_from_join_to_batch(tmp_path: Path) -> None:
    maths = {"check": {"kind": "math"}}  # the default check, in a real verifier process
    settings = changed(task=maths, serve={"stay_s": 3600.0, "page_url": "https://run.example.org:7401"})
    async with running(tmp_path, settings) as coordinator, Member(await coordinator.join("origin"), "origin") as origin:
        await origin.hello()
        assert (await origin.next("welcome")).run_id == origin.enrolment.run_id
        async with Member(await coordinator.join("learner")) as learner, Member(await coordinator.join("peer")) as peer:
            info = await open_run(learner, coordinator)
            assert (info.steps, info.staleness_limit, info.origin_address) == (1, 2, "127.0.0.1:7777")
            await peer.hello()
            assert (await peer.next("welcome")).prefetch_batches == 2.0
            announcement = version(info.run_id, coordinator.learner_identity)
            assert (await learner.stub.Announce(announcement)).first_time
            assert not (await learner.stub.Announce(announcement)).first_time
            assert await peer.next("announcement") == announcement
            waiting = [part async for part in learner.stub.NextBatch(pb.BatchRequest(step=0, wait_s=0.05))]
            assert [part.header.ready for part in waiting] == [False]
            assert "batch of step 1" in waiting[0].header.waiting_for
            batch = asyncio.create_task(fetch_batch(learner, 0))
            await work(peer, info)
            header, *rollouts = await batch
            assert header.header.rollout_count == 4
            assert sorted(one.reward for part in rollouts for one in part.rollouts) == [0.0, 0.0, 1.0, 1.0]
            await learner.stub.ReportStep(pb.StepReport(step=1, values={"reward_mean": 0.5, "loss": float("nan")}))
            await check_screens(coordinator)
            await learner.stub.ReportStatus(pb.LearnerStatus(phase="finished", values={"reward_after": 0.9}))
            assert (await peer.next("stop")).reason == "finished"
            await peer.ended()
        await check_the_page_stays(coordinator)
        coordinator.stop.set()
        assert await coordinator.ended() == 0
        check_what_is_left(coordinator)


async def test_the_learner_is_told_of_a_pause_and_of_an_early_end(tmp_path: Path) -> None:
    async with running(tmp_path) as coordinator, Member(await coordinator.join("origin"), "origin") as origin:
        await origin.hello()
        async with Member(await coordinator.join("learner")) as learner:
            info = await open_run(learner, coordinator)
            await learner.stub.Announce(version(info.run_id, coordinator.learner_identity))

            async def header() -> pb.BatchHeader:
                (part,) = [part async for part in learner.stub.NextBatch(pb.BatchRequest(step=0, wait_s=0.05))]
                return part.header

            assert not (await header()).paused
            await act_on_run(coordinator, "pause")
            assert ((await header()).paused, (await header()).final) == (True, False)
            await act_on_run(coordinator, "finish")
            assert ((await header()).paused, (await header()).final) == (False, True)
            await learner.stub.ReportStatus(pb.LearnerStatus(phase="finished"))
        assert await coordinator.ended() == 0
    assert json.loads(coordinator.folder.summary.read_text())["ended_because"] == "finished"


async def act_on_run(coordinator: Running, act: str) -> None:
    key = (coordinator.folder.secrets / "operator.key").read_text().strip()
    url, headers = f"{coordinator.http_url}/api/v1/acts/run", {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as client, client.post(url, json={"act": act}, headers=headers) as response:
        assert (response.status, (await response.json())["changes"]) == (200, True)


async def check_the_page_stays(coordinator: Running) -> None:
    async with asyncio.timeout(WAIT_S), aiohttp.ClientSession() as client:
        while not coordinator.folder.summary.exists():  # noqa: ASYNC110  # no notification exists for a file
            await asyncio.sleep(0.02)
        async with client.get(f"{coordinator.http_url}/api/v1/status") as response:
            assert (await response.json())["phase"] == "finished"
    assert json.loads(coordinator.folder.endpoints.read_text())["page_url"] == "https://run.example.org:7401"


async def check_screens(coordinator: Running) -> None:
    async with aiohttp.ClientSession() as client:
        async with client.get(f"{coordinator.http_url}/api/v1/status") as response:
            status = await response.json()
            assert (status["step"], status["rollouts"]["trained"], status["reward_train"]) == (1, 4, 0.5)
            assert {peer["name"] for peer in status["peers"]} == {"origin", "peer"}
        async with client.get(f"{coordinator.http_url}/metrics") as response:
            assert 'rollcast_staleness_trained_total{age="0"} 4.0' in await response.text()
        async with client.get(f"{coordinator.http_url}/ready") as response:
            assert response.status == 200


def check_what_is_left(coordinator: Running) -> None:
    summary = json.loads(coordinator.folder.summary.read_text())
    assert summary["phase"] == "finished"
    assert summary["reward_after"] == 0.9
    assert summary["staleness_max_trained"] == 0
    rollouts = summary["rollouts"]
    assert rollouts["trained"] == 4
    assert rollouts["issued"] == rollouts["trained"] + rollouts["open"] + sum(rollouts["dropped"].values())
    lines = [json.loads(line) for line in coordinator.folder.metrics.read_text().splitlines()]
    assert [(line["step"], line["reward"], line["loss"]) for line in lines] == [(1, 0.5, None)]
    assert coordinator.folder.reward_plot.stat().st_size > 1000
    secrets = coordinator.folder.secrets
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets.iterdir())


async def test_stopped_run_has_a_summary_and_can_be_resumed(tmp_path: Path) -> None:
    learner_key, peer_key = Identity.generate(), Identity.generate()
    two_steps = changed(run={"steps": 2})
    async with running(tmp_path, two_steps, learner=learner_key) as coordinator:
        async with (
            Member(await coordinator.join("learner")) as learner,
            Member(await coordinator.join("peer", peer_key)) as peer,
        ):
            info = await open_run(learner, coordinator)
            await learner.stub.Announce(version(info.run_id, learner_key))
            await peer.hello()
            await work(peer, info)
            first_batch = await fetch_batch(learner, 0)
            await learner.stub.ReportStep(pb.StepReport(step=1, values={"reward_mean": 0.5}))
            under_way = await take_leases(peer, 2)  # still in progress when the run ends
            coordinator.stop.set()
            await peer.ended()
            assert "stop" not in {message.WhichOneof("body") for message in peer.received}
            async with Member(peer.enrolment) as again:
                await again.hello()
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await again.next("refused")
                assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE  # so the peer retries
        assert await coordinator.ended() == 130
        summary = json.loads(coordinator.folder.summary.read_text())
        assert summary["phase"] == "stopped"
        assert (summary["rollouts"]["open"], summary["rollouts"]["dropped"]) == (2, {})
        assert summary["staleness"]["split"]["rollouts"] == 4
        assert (summary["staleness_max_trained"], summary["wall_s"] > 0.0) == (0, True)
        first_wall_s = summary["wall_s"]

    async with running(tmp_path, two_steps, learner=learner_key) as coordinator:
        async with (
            Member(await coordinator.join("learner")) as learner,
            Member(await coordinator.join("peer", peer_key)) as peer,
        ):
            info = await open_run(learner, coordinator)
            assert info.run_id == summary["run_id"]
            assert (info.recorded_batches, info.has_published, info.newest_published_version) == (1, True, 0)
            replayed = await fetch_batch(learner, 0)
            assert replayed[0].header.replayed
            assert replayed[1:] == first_batch[1:]
            await peer.hello()
            await peer.next("announcement")
            assert await upload(peer, answers(peer, info, under_way)) == [(True, "")] * 2, (
                "its leases are still its own"
            )
            await work(peer, info, slots=2)
            await fetch_batch(learner, 1)
            await learner.stub.ReportStatus(pb.LearnerStatus(phase="finished"))
        assert await coordinator.ended() == 0
        summary = json.loads(coordinator.folder.summary.read_text())
        assert (summary["staleness_max_trained"], summary["wall_s"] > first_wall_s) == (1, True)
        rollouts = summary["rollouts"]
        assert (rollouts["issued"], rollouts["trained"], rollouts["dropped"]) == (8, 8, {})
        assert summary["staleness"]["split"]["rollouts"] + summary["staleness"]["split"]["unknown"] == 8

    with pytest.raises(RunFolderError, match="finished"):
        async with running(tmp_path, two_steps, learner=learner_key):
            pass


async def test_a_run_whose_store_does_not_answer_stops_without_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "STOPPED_SUMMARY_DEADLINE_S", 0.1)
    monkeypatch.setattr("coordinator.ledger.thread.CLOSE_TIMEOUT_S", 0.1)
    answers_again, commit = threading.Event(), SqliteEngine.commit

    def late(*arguments: Any) -> list[Any]:
        assert answers_again.wait(WAIT_S)
        return commit(*arguments)

    async with running(tmp_path) as coordinator:
        monkeypatch.setattr(SqliteEngine, "commit", late)
        coordinator.stop.set()
        assert await coordinator.ended() == 130
        assert not coordinator.folder.summary.exists()
        answers_again.set()


async def test_a_finished_run_whose_store_does_not_answer_says_what_it_waits_for_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "AWAY_POLL_S", 0.01)
    monkeypatch.setattr(service, "AWAY_MOST_S", 0.05)
    answers_again, written = asyncio.Event(), list[str]()
    ledger = SimpleNamespace(is_reached=False)

    async def write(_coordinator: object, reason: str, _within_s: float) -> None:
        await answers_again.wait()
        written.append(reason)

    monkeypatch.setattr(service, "_write_summary", write)
    finished = cast(service.Coordinator, SimpleNamespace(ledger=ledger))
    with capture_logs() as lines, pytest.raises(StoreError, match="did not answer for") as gone:
        await service._write_last_summary(finished, "finished")
    assert "start the coordinator again" in gone.value.fix
    assert [line["event"] for line in lines] == ["the run is over, and its summary waits for the store"]
    monkeypatch.setattr(service, "AWAY_MOST_S", 600.0)
    writing = asyncio.create_task(service._write_last_summary(finished, "finished"))
    await asyncio.sleep(0.03)
    answers_again.set()
    await writing
    assert written == ["finished"]


async def test_coordinator_killed_after_the_learner_finished_writes_the_summary_on_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RETURN_S", 0.0)
    key = Identity.generate()
    async with running(tmp_path, learner=key) as coordinator, Member(await coordinator.join("learner")) as learner:
        await learner.stub.ReportStatus(pb.LearnerStatus(phase="training", values={"reward_after": 0.9}))
        first = json.loads(coordinator.folder.endpoints.read_text())
    ledger = Ledger.open(coordinator.folder.ledger)
    await ledger.set_meta(LEARNER_FINISHED, "yes")  # the last fact that became durable
    await ledger.close()
    async with running(tmp_path, learner=key) as coordinator:
        assert json.loads(coordinator.folder.endpoints.read_text()) == first, "members find it where it was"
        assert await coordinator.ended() == 0
    summary = json.loads(coordinator.folder.summary.read_text())
    assert (summary["phase"], summary["ended_because"], summary["reward_after"]) == ("finished", "finished", 0.9)
    with pytest.raises(RunFolderError, match="finished"):
        async with running(tmp_path, learner=key):
            pass


async def test_a_standby_whose_batches_have_another_shape_is_told_before_it_leads(tmp_path: Path) -> None:
    config, folder = config_for(tmp_path, Identity.generate(), {}), RunFolder(tmp_path / "run").prepare()
    ledger = Ledger.open(folder.ledger)
    with closing(sqlite3.connect(folder.ledger)) as connection:
        assert not service._can_take_over(config, folder, connection)
        await ledger.set_meta(BATCH_SHAPE, "9 groups of 9")
        with pytest.raises(ConfigError, match="those of this run have 9 groups of 9"):
            service._can_take_over(config, folder, connection)
    await ledger.close()


async def test_an_epoch_outlives_the_coordinator(tmp_path: Path) -> None:
    key = Identity.generate()
    async with running(tmp_path, learner=key) as coordinator, Member(await coordinator.join("learner")) as learner:
        info = await open_run(learner, coordinator)
        assert (info.epoch, list(info.epochs), info.staleness_limit, info.publish_every_steps) == (0, [], 2, 1)
        await learner.stub.Announce(version(info.run_id, key))
        for _ in range(2):  # the first answer may have been lost
            opened = await learner.stub.OpenEpoch(pb.EpochRequest(step=0))
            assert (opened.epoch, opened.step) == (1, 1)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await learner.stub.Announce(version(info.run_id, key, 1))
        assert translate(refusal.value, "testing").code == "RC602"
    async with running(tmp_path, learner=key) as coordinator, Member(await coordinator.join("learner")) as learner:
        info = await open_run(learner, coordinator)
        assert (info.epoch, list(info.epochs)) == (1, [pb.EpochStart(epoch=1, step_from=0, step=1)])
        assert (info.recorded_batches, info.newest_published_version) == (1, 0)
        assert (await learner.stub.OpenEpoch(pb.EpochRequest(step=0))).epoch == 1


async def test_error_that_ends_a_run_is_raised_and_in_the_summary(tmp_path: Path) -> None:
    with pytest.raises(NoPeers):
        await run_until_it_fails(tmp_path / "alone", {"no_peer_timeout_s": 0.3})
    summary = json.loads((tmp_path / "alone" / "run" / "summary.json").read_text())
    assert (summary["phase"], summary["ended_because"][:5]) == ("stopped", "RC202")


@pytest.mark.parametrize(
    ("timeouts", "missing"),
    [
        ({"start_timeout_s": 0.3}, "no origin for"),
        ({"learner_timeout_s": 0.3}, "the learner has not called for"),
    ],
)
async def test_an_origin_or_learner_that_is_missing_is_named(
    tmp_path: Path, timeouts: dict[str, float], missing: str
) -> None:
    with pytest.raises(WaitTimedOut, match=missing):
        await run_until_it_fails(tmp_path, timeouts)


async def run_until_it_fails(folder: Path, timeouts: dict[str, float]) -> None:
    """Run until it fails: a learner publishes a version, but no origin and no peer ever join."""
    async with (
        running(folder, changed(membership=timeouts)) as coordinator,
        Member(await coordinator.join("learner")) as learner,
    ):
        info = await open_run(learner, coordinator)
        await learner.stub.Announce(version(info.run_id, coordinator.learner_identity))
        await asyncio.wait([coordinator.task])


async def test_beyond_loopback_everything_is_encrypted(tmp_path: Path) -> None:
    open_to_all = changed(serve={"host": "0.0.0.0", "advertise_host": "localhost"})
    async with running(tmp_path, open_to_all) as coordinator:
        assert coordinator.http_url.startswith("https://localhost:")
        async with Member(await coordinator.join("peer")) as peer:
            await peer.hello()
            await peer.next("welcome")
        async with aiohttp.ClientSession() as client:
            with pytest.raises(aiohttp.ClientError):
                await client.get(coordinator.http_url.replace("https", "http") + "/health")


async def test_almost_full_disk_refuses_rollouts_but_keeps_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 1 << 40
    monkeypatch.setattr("coordinator.shell.background.DISK_CHECK_S", 0.01)
    monkeypatch.setattr("coordinator.ledger.disk_guard.DiskGuard.__init__.__kwdefaults__", {"probe": lambda _: free})
    async with running(tmp_path) as coordinator, Member(await coordinator.join("learner")) as learner:
        info = await open_run(learner, coordinator)
        await learner.stub.Announce(version(info.run_id, coordinator.learner_identity))
        async with Member(await coordinator.join("peer")) as peer:
            await peer.hello()
            (lease, *_) = await take_leases(peer, 2)
            done = rollout(lease, lease.slots[0], peer.enrolment.peer_id, [1])
            ballast = coordinator.folder.root / "ballast"
            free = 0
            await until(lambda: not ballast.exists())
            assert await upload(peer, [done]) == [(False, "busy")]
            await peer.say(heartbeat=pb.Heartbeat())
            free = 1 << 40
            await until(ballast.exists)
            while (answers := await upload(peer, [done])) == [(False, "busy")]:
                pass  # the ballast comes first
            assert answers == [(True, "")]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # no notification exists for a file
            await asyncio.sleep(0.01)


async def test_a_ledger_that_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise StoreError("the ledger refuses", fix="none")

    monkeypatch.setattr("coordinator.ledger.sql_work.insert_attempts", refuse)
    with pytest.raises(StoreError, match="the ledger refuses"):
        await run_until_work_is_leased(tmp_path)


async def run_until_work_is_leased(tmp_path: Path) -> None:
    async with running(tmp_path) as coordinator, Member(await coordinator.join("learner")) as learner:
        info = await open_run(learner, coordinator)
        await learner.stub.Announce(version(info.run_id, coordinator.learner_identity))
        async with Member(await coordinator.join("peer")) as peer:
            await peer.hello()
            await take_leases(peer, 2)
            await asyncio.wait([coordinator.task])


@pytest.mark.parametrize("serve", [{}, {"host": "0.0.0.0"}])
def test_invalid_configuration_fails_before_startup(serve: dict[str, Any]) -> None:
    key = "00" * 32 if serve else ""
    with pytest.raises(ConfigError):
        check(CoordinatorConfig.model_validate({"serve": serve, "learner_public_key": key}))


async def test_a_relay_plan_that_is_made_beside_the_loop_reaches_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.core.decisions.broadcasts.PLANNED_IN_LINE_MAX", 0)
    async with running(tmp_path) as coordinator:
        enrolled = [await coordinator.join(role) for role in ("origin", "peer")]
        async with Member(enrolled[0], "origin") as origin, Member(enrolled[1]) as peer:
            for member in (origin, peer):
                await member.hello()
            plan = await peer.next("relay_plan")
            assert [one.peer_id for one in plan.neighbours] == [enrolled[0].peer_id]
