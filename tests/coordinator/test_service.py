"""The coordinator as a whole, over real gRPC and HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from coordinator.config import CoordinatorConfig
from rollcast.runtime.errors import ConfigError, PortInUse, RunFolderError
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.tokenizer import Tokenizer
from tests.coordinator.running import Member, Running, answer, rollout, running, version


async def test_a_whole_step(tmp_path: Path) -> None:
    async with running(tmp_path) as coordinator, Member(await coordinator.join("origin"), "origin") as origin:
        await origin.hello()
        assert (await origin.next("welcome")).run_id == origin.enrolment.run_id
        async with Member(await coordinator.join("learner")) as learner, Member(await coordinator.join("peer")) as peer:
            info = await learner.stub.OpenLearner(
                pb.LearnerHello(protocol=range_to_pb(), learner_public_key=coordinator.learner_identity.public_key)
            )
            assert (info.steps, info.staleness_limit, info.origin_address) == (1, 2, "127.0.0.1:7777")
            await peer.hello()
            assert (await peer.next("welcome")).prefetch_batches == 2.0
            announcement = version(info.run_id, coordinator.learner_identity)
            assert (await learner.stub.Announce(announcement)).first_time
            assert not (await learner.stub.Announce(announcement)).first_time
            assert await peer.next("announcement") == announcement
            waiting = [part async for part in learner.stub.NextBatch(pb.BatchRequest(step=0, wait_s=0.05))]
            assert [part.header.ready for part in waiting] == [False]
            assert "batch of step 0" in waiting[0].header.waiting_for
            batch = asyncio.create_task(_batch(learner))
            await _work(peer, Tokenizer.from_json(info.tokenizer_json))
            header, *rollouts = await batch
            assert header.header.rollout_count == len(rollouts) == 4
            assert sorted(part.rollout.reward for part in rollouts) == [0.0, 0.0, 1.0, 1.0]
            await learner.stub.ReportStep(pb.StepReport(step=1, values={"reward_mean": 0.5, "loss": float("nan")}))
            await learner.stub.ReportStatus(pb.LearnerStatus(phase="finished", values={"reward_after": 0.9}))
            assert (await peer.next("stop")).reason == "finished"
            await peer.ended()
        assert await coordinator.ended() == 0
        _check_what_is_left(coordinator)


async def _batch(learner: Member) -> list[pb.BatchPart]:
    return [part async for part in learner.stub.NextBatch(pb.BatchRequest(step=0, wait_s=20))]


async def _work(peer: Member, tokenizer: Tokenizer) -> None:
    """Take two leases of two slots and answer one slot of each rightly."""
    await peer.say(version_held=pb.VersionHeld(epoch=0, version=0))
    await peer.say(work_request=pb.WorkRequest(free_slots=4))
    leases: list[pb.Lease] = []
    while sum(len(lease.slots) for lease in leases) < 4:
        leases += (await peer.next("leases")).leases
    rollouts = [
        rollout(lease, slot, peer.enrolment.peer_id, answer(tokenizer, lease, right=slot.sample_index == 0))
        for lease in leases
        for slot in lease.slots
    ]
    upload = peer.stub.UploadRollouts()
    await upload.write(pb.RolloutUpload(rollouts=rollouts[:3]))
    await upload.write(pb.RolloutUpload(rollouts=rollouts[3:]))
    await upload.done_writing()
    reply = await upload
    assert [(verdict.accepted, verdict.reason) for verdict in reply.verdicts] == [(True, "")] * 4


def _check_what_is_left(coordinator: Running) -> None:
    summary = json.loads(coordinator.folder.summary.read_text())
    assert summary["phase"] == "finished"
    assert summary["reward_after"] == 0.9
    assert summary["rollouts"]["trained"] == 4
    assert summary["staleness_max_trained"] == 0
    rollouts = summary["rollouts"]
    assert rollouts["issued"] == rollouts["trained"] + rollouts["open"] + sum(rollouts["dropped"].values())
    lines = [json.loads(line) for line in coordinator.folder.metrics.read_text().splitlines()]
    assert [(line["step"], line["reward"], line["loss"]) for line in lines] == [(1, 0.5, None)]
    assert coordinator.folder.reward_plot.stat().st_size > 1000


async def test_a_stopped_run_leaves_a_summary(tmp_path: Path) -> None:
    async with running(tmp_path) as coordinator:
        async with Member(await coordinator.join("peer")) as peer:
            await peer.hello()
            await peer.next("welcome")
            coordinator.stop.set()
            assert (await peer.next("stop")).reason == "stopped"
        assert await coordinator.ended() == 130
        assert json.loads(coordinator.folder.summary.read_text())["phase"] == "stopped"


async def test_another_port_holder_is_named(tmp_path: Path) -> None:
    async with running(tmp_path) as first:
        for key in ("http_port", "grpc_port"):
            taken = first.http_url if key == "http_port" else first.invite("peer").grpc_address
            port = int(taken.rpartition(":")[2])

            def on_same_port(config: CoordinatorConfig, key: str = key, port: int = port) -> CoordinatorConfig:
                return config.model_copy(
                    update={
                        "serve": config.serve.model_copy(update={key: port}),
                        "run_folder": tmp_path / key,
                    }
                )

            with pytest.raises(PortInUse, match=str(port)) as caught:
                async with running(tmp_path, on_same_port):
                    pass
            assert f"serve.{key}" in caught.value.fix
