"""Flood one coordinator from this process until it is killed: silent, dripping and uploading connections.

Reads {"folder", "http", "control", "invite"} as JSON from stdin, and prints a line once every connection was opened.
Whatever the coordinator closes is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import rollcast  # noqa: F401, before grpc, whose TLS it sets
from rollcast.runtime.errors import RollcastError
from rollcast.wire.identity.identity import Identity
from rollcast.wire.joining.enrol import Enrolment, enrol
from rollcast.wire.joining.grpc_client import open_channel
from rollcast.wire.joining.invite import Invite
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc
from rollcast.wire.token_ids import pack_ids

SILENT_CONTROL, SILENT_HTTP, DRIPPING, UPLOADING = 80, 60, 30, 30
CONNECTIONS = SILENT_CONTROL + SILENT_HTTP + DRIPPING + UPLOADING
IDENTITIES = 5  # of the uploading connections
CALLS_AT_ONCE = 4  # of each of them
_AGAIN_S = 0.2
_MESSAGE_ROLLOUTS, _ROLLOUT_TOKENS = 64, 4096


async def _silent(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await reader.read()
    finally:
        writer.close()


async def _dripping(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for byte in b"POST /api/v1/join HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + 1000 * b"y":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(1.0)
    finally:
        writer.close()


async def _uploading(enrolment: Enrolment) -> None:
    channel = open_channel(enrolment.grpc_address, enrolment.credentials)
    stub: Any = rollcast_pb2_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]
    segment = pb.Segment(peer_id=enrolment.peer_id, packed_ids=pack_ids(_ROLLOUT_TOKENS * [5]))
    one = pb.Rollout(lease_id=1, fencing_token=1, group_id=1, segments=[segment])
    message = pb.RolloutUpload(rollouts=_MESSAGE_ROLLOUTS * [one])

    def messages() -> Iterator[pb.RolloutUpload]:
        while True:
            yield message

    async def call() -> None:
        while True:
            with contextlib.suppress(Exception):
                async for _ in stub.UploadRollouts(messages(), timeout=60.0):
                    pass
            await asyncio.sleep(_AGAIN_S)

    try:
        await asyncio.gather(*(call() for _ in range(CALLS_AT_ONCE)))
    finally:
        await channel.close(None)


async def _again(open_one: Callable[[], Awaitable[None]]) -> None:
    while True:
        with contextlib.suppress(OSError, RollcastError):
            await open_one()
        await asyncio.sleep(_AGAIN_S)


async def main() -> None:
    given = json.loads(sys.stdin.readline())
    invite, folder = Invite.decode(given["invite"]), Path(given["folder"])
    members = [
        await enrol(invite, Identity.generate(), folder / f"hostile-{number}", 60.0) for number in range(IDENTITIES)
    ]
    kinds: list[Callable[[], Awaitable[None]]] = [
        *(SILENT_CONTROL * [lambda: _silent(given["control"])]),
        *(SILENT_HTTP * [lambda: _silent(given["http"])]),
        *(DRIPPING * [lambda: _dripping(given["http"])]),
        *((lambda member=members[number % IDENTITIES]: _uploading(member)) for number in range(UPLOADING)),
    ]
    tasks = [asyncio.create_task(_again(kind)) for kind in kinds]
    print(len(tasks), flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    os.nice(5)  # the flood is the network's, and must not win the processor from the coordinator
    asyncio.run(main())
