"""Run a real coordinator in this process, and scripted members that connect to it over loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from coordinator import service
from coordinator.config.config import CoordinatorConfig
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.joining.enrol import Enrolment, enrol
from rollcast.wire.joining.grpc_client import open_channel
from rollcast.wire.joining.invite import Invite
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc as pb_grpc
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import pack_ids
from rollcast.wire.versions.chunks import chunk_list
from rollcast.wire.versions.records import VersionRecord, keyframe_manifest, sign_version
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import tensor_table
from tests.coordinator.scoring_here import scoring_here

WAIT_S = 20.0


@dataclass
class Running:
    """A running coordinator that listens."""

    folder: RunFolder
    http_url: str
    learner_identity: Identity
    stop: asyncio.Event
    task: asyncio.Task[int]

    def invite(self, role: str) -> Invite:
        return Invite.decode((self.folder.secrets / f"invite-{role}.txt").read_text())

    async def join(self, role: str, identity: Identity | None = None) -> Enrolment:
        """Enrol as a new identity, or as this one."""
        identity = identity or (self.learner_identity if role == "learner" else Identity.generate())
        return await enrol(self.invite(role), identity, self.folder.root / f"state-{identity.peer_id}", WAIT_S)

    async def ended(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return await self.task


def changed(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a test's changes to the tiny run below, by section."""
    return sections


def config_for(folder: Path, learner: Identity, changes: dict[str, dict[str, Any]]) -> CoordinatorConfig:
    """Return the configuration of a tiny run on ports of the system's choice."""
    values: dict[str, Any] = {
        "run": {"steps": 1, "groups_per_step": 2, "samples_per_group": 2, "staleness_limit": 2},
        "task": {"kind": "jsonl", "path": str(_problems(folder)), "check": {"kind": "exact"}},  # needs no library
        "held_out_problems": 8,
        "join": {"peers_max": 64},
        "serve": {"grpc_port": 0, "http_port": 0},
        "learner_public_key": learner.public_key.hex(),
        "run_folder": str(folder / "run"),
    }
    for section, fields in changes.items():
        values[section] = fields if "kind" in fields else {**values.get(section, {}), **fields}
    return CoordinatorConfig.model_validate(values)


def _problems(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "problems.jsonl"
    lines = [json.dumps({"prompt": f"{number}+1=", "answer": str(number + 1)}) for number in range(64)]
    path.write_text("\n".join(lines) + "\n")
    return path


@asynccontextmanager
async def running(
    tmp_path: Path, changes: dict[str, dict[str, Any]] | None = None, *, learner: Identity | None = None
) -> AsyncIterator[Running]:
    """Start a coordinator, stop it at the end, and raise its error if it raised one.

    It compares answers itself, as a verifier process takes a second of processor time to start. For any other check,
    such as `math`, it has real ones.
    """
    learner = learner or Identity.generate()
    config = config_for(tmp_path, learner, changes or {})
    stop = asyncio.Event()
    folder = RunFolder(config.run_folder)
    folder.endpoints.unlink(missing_ok=True)
    with scoring_here():
        task = asyncio.create_task(service.run(config, stop))
        async with asyncio.timeout(60):
            while not folder.endpoints.exists() and not task.done():
                await asyncio.wait([task], timeout=0.02)
    if task.done():
        await task
    endpoints = json.loads(folder.endpoints.read_text())
    try:
        yield Running(folder, endpoints["http_url"], learner, stop, task)
    finally:
        stop.set()
        async with asyncio.timeout(WAIT_S):
            await task


@dataclass
class Member:
    """A scripted peer or origin with an open session."""

    enrolment: Enrolment
    role: str = "peer"
    received: list[pb.CoordinatorMessage] = field(default_factory=list)

    async def __aenter__(self) -> Member:
        self.channel = open_channel(self.enrolment.grpc_address, self.enrolment.credentials)
        self.stub = pb_grpc.CoordinatorStub(self.channel)  # type: ignore[no-untyped-call]
        self.session = self.stub.Session()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.session.cancel()
        await self.channel.close()

    async def say(self, **body: Any) -> None:
        await self.session.write(pb.PeerMessage(**body))

    async def hello(self, **changes: Any) -> None:
        values = {"protocol": range_to_pb(), "role": self.role, "name": self.role, "concurrent_rollouts": 8}
        address = {"advertise": "127.0.0.1:7777"} if self.role == "origin" else {}
        await self.say(hello=pb.Hello(**{**values, **address, **changes}))

    async def next(self, kind: str) -> Any:
        """Return the next message of this kind; those before it are kept in ``received``."""
        async with asyncio.timeout(WAIT_S):
            while True:
                message = await self.session.read()
                if message is grpc.aio.EOF:
                    raise AssertionError(f"the session ended before a {kind} came")
                self.received.append(message)
                if message.WhichOneof("body") == kind:
                    return getattr(message, kind)

    async def ended(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while (message := await self.session.read()) is not grpc.aio.EOF:
                self.received.append(message)


def version(run_id: str, learner: Identity, number: int = 0) -> pb.VersionAnnouncement:
    """Return a signed version of 64 bytes."""
    state = bytes(range(64))
    record = VersionRecord(
        run_id=RunId(run_id),
        epoch=Epoch(0),
        version=Version(number),
        parent_hash=b"",
        state_hash=state_hash(state),
        state_size_bytes=len(state),
        tensors=tensor_table([("weights", "float32", (16,))]),
        model_json="{}",
    )
    return sign_version(record, [keyframe_manifest(record, chunk_list(state, 1024), 1024)], learner)


def rollout(lease: pb.Lease, slot: pb.Slot, peer_id: str, token_ids: list[int], number: int = 0) -> pb.Rollout:
    """Return a completion of a leased slot."""
    segment = pb.Segment(
        role=pb.ASSISTANT,
        epoch=lease.epoch,
        version=number,
        peer_id=peer_id,
        packed_ids=pack_ids(token_ids),
        loss_mask=bytes([1] * len(token_ids)),
    )
    return pb.Rollout(
        lease_id=lease.lease_id,
        fencing_token=lease.fencing_token,
        group_id=lease.group_id,
        sample_index=slot.sample_index,
        segments=[segment],
        finish_reason=pb.STOP,
        generate_s=0.01,
    )


def answer(tokenizer: Tokenizer, lease: pb.Lease, *, right: bool) -> list[int]:
    """Return the tokens of a right or wrong answer to a leased problem "n+1="."""
    number = int(tokenizer.decode(lease.prompt_token_ids).partition("+")[0])
    return [*tokenizer.encode(str(number + 1 if right else number)), tokenizer.eos_id]
