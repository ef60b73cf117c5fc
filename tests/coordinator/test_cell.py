"""A real coordinator of a cell, with a scripted uplink and a scripted member over loopback."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from rollcast.runtime.errors import JoinRefused, RunFolderError
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import RunId
from rollcast.wire.joining.grpc_client import open_channel
from rollcast.wire.joining.invite import Invite
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc as pb_grpc
from tests.coordinator.running import Member, Running, rollout, running, version

HEAD_RUN = "head-20260101-000000-0000"


def head_invite(folder: Path, learner: Identity, *, role: Any = "cell", run_id: str = HEAD_RUN) -> dict[str, Any]:
    """Write a head's invite, and return the section of a cell's configuration that names it."""
    invite = Invite(
        run_id=RunId(run_id),
        role=role,
        http_url="https://127.0.0.1:1",
        grpc_address="127.0.0.1:2",
        ca_sha256="0" * 64,
        learner_public_key=learner.public_key.hex(),
        token="token",
    )
    path = folder / f"invite-{role}-{run_id}.txt"
    path.write_text(invite.encode())
    return {"cell": {"invite_file": str(path)}, "lease": {"pacing": "predict"}}


def lease_of_head(*samples: int) -> pb.Lease:
    return pb.Lease(
        lease_id=501,
        fencing_token=502,
        group_id=77,
        prompt_token_ids=[1, 2],
        slots=[pb.Slot(sample_index=one, seed=1000 + one) for one in samples],
        sampling=pb.Sampling(temperature=1.0, max_new_tokens=4, stop_token_ids=[1]),
        deadline_s=30.0,
        kind=pb.TRAINING,
    )


async def uplink_stub(cell: Running, stack: AsyncExitStack, identity: Identity | None = None) -> Any:
    """Join in the learner's place, with a key that signs nothing, and return the stub of that connection."""
    enrolment = await cell.join("learner", identity or Identity.generate())
    channel = await stack.enter_async_context(open_channel(enrolment.grpc_address, enrolment.credentials))
    return pb_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]


async def test_a_lease_goes_through_a_cell_and_its_rollout_comes_back(tmp_path: Path) -> None:
    learner = Identity.generate()
    async with AsyncExitStack() as stack:
        cell = await stack.enter_async_context(running(tmp_path, head_invite(tmp_path, learner), learner=learner))
        stub = await uplink_stub(cell, stack)
        origin = await stack.enter_async_context(Member(await cell.join("origin"), "origin"))
        await origin.hello()
        await origin.next("welcome")
        await stub.Announce(version(HEAD_RUN, learner))
        member = await stack.enter_async_context(Member(await cell.join("peer")))
        await member.hello()
        welcome = await member.next("welcome")
        assert welcome.run_id == HEAD_RUN
        await member.say(version_held=pb.VersionHeld(epoch=0, version=0))
        await member.say(work_request=pb.WorkRequest(free_slots=4))
        answered = await stub.Cell(pb.CellReport(leases=[lease_of_head(0, 3)]))
        assert (answered.slots_lent, list(answered.leases)) == (2, [501])
        leases = (await member.next("leases")).leases
        assert {slot.seed for one in leases for slot in one.slots} <= {1000, 1003}
        made = rollout(leases[0], leases[0].slots[0], member.enrolment.peer_id, [5, 1])
        made.segments[0].sampler = "jax-cpu"
        replies = [one async for one in member.stub.UploadRollouts(iter([pb.RolloutUpload(rollouts=[made])]))]
        assert [verdict.accepted for reply in replies for verdict in reply.verdicts] == [True]

        wants = pb.CellReport(rollouts_max=8, wait_s=5.0)
        (delivered,) = (await stub.Cell(wants)).rollouts
        assert (delivered.lease_id, delivered.fencing_token, delivered.group_id) == (501, 502, 77)
        assert delivered.sample_index in (0, 3)
        assert delivered.segments == made.segments, "whose tokens they are, and what generated them, is kept"
        (again,) = (await stub.Cell(wants)).rollouts
        assert again == delivered, "until its slot is over"
        over = [pb.SlotOver(lease_id=501, sample_index=delivered.sample_index)]
        answered = await stub.Cell(pb.CellReport(over=over))
        assert (answered.slots_lent, answered.workers, answered.slots) == (1, 1, 8)


async def test_stored_rollouts_and_slots_survive_a_restart_of_the_cell(tmp_path: Path) -> None:
    learner = Identity.generate()
    section, uplink = head_invite(tmp_path, learner), Identity.generate()
    async with AsyncExitStack() as stack:
        cell = await stack.enter_async_context(running(tmp_path, section, learner=learner))
        stub = await uplink_stub(cell, stack, uplink)
        await stub.Announce(version(HEAD_RUN, learner))
        member = await stack.enter_async_context(Member(await cell.join("peer")))
        await member.hello()
        await member.say(version_held=pb.VersionHeld(epoch=0, version=0))
        await member.say(work_request=pb.WorkRequest(free_slots=4))
        await stub.Cell(pb.CellReport(leases=[lease_of_head(0)]))
        (lease,) = (await member.next("leases")).leases
        made = rollout(lease, lease.slots[0], member.enrolment.peer_id, [5, 1])
        async for _ in member.stub.UploadRollouts(iter([pb.RolloutUpload(rollouts=[made])])):
            pass
    async with AsyncExitStack() as stack:
        cell = await stack.enter_async_context(running(tmp_path, section, learner=learner))
        stub = await uplink_stub(cell, stack, uplink)
        answered = await stub.Cell(pb.CellReport())
        assert (answered.slots_lent, list(answered.leases)) == (1, [501])
        (delivered,) = (await stub.Cell(pb.CellReport(rollouts_max=8))).rollouts
        assert (delivered.lease_id, delivered.segments[0].packed_ids) == (501, made.segments[0].packed_ids)


async def test_a_coordinator_with_a_run_of_its_own_serves_no_cell_and_takes_no_peer_for_one(tmp_path: Path) -> None:
    async with running(tmp_path) as run, AsyncExitStack() as stack:
        peer = await stack.enter_async_context(Member(await run.join("peer")))
        await peer.hello(cell=True)
        assert (await peer.next("refused")).what == "this invite is not for cells"
        enrolment = await run.join("learner")
        channel = await stack.enter_async_context(open_channel(enrolment.grpc_address, enrolment.credentials))
        stub = pb_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Cell(pb.CellReport())
        assert "serves no cell" in str(refused.value.details())


async def test_an_invite_for_another_role_or_another_run_is_refused(tmp_path: Path) -> None:
    learner = Identity.generate()
    with pytest.raises(JoinRefused, match="is for the role peer, not for a cell"):
        async with running(tmp_path, head_invite(tmp_path, learner, role="peer")):
            pass
    async with running(tmp_path, head_invite(tmp_path, learner)):
        pass
    with pytest.raises(RunFolderError, match="and the head's is another"):
        async with running(tmp_path, head_invite(tmp_path, learner, run_id="another")):
            pass
