"""Run a learner that trains nothing and publishes a small version every few seconds, with or without a coordinator.

usage: python -m bench.programs.steady_learner CONFIG.toml LOG_FILE SIZE_BYTES PEERS LIMIT_S INTERVAL_S

The program prints `{"event": "ready"}` once PEERS peers and the origin are connected, and starts publishing when it
reads a line on stdin. Each version goes to the origin first; `{"event": "published", "version", "at_s"}` reports that
the origin holds it durably (Unix time). The coordinator gets the announcement concurrently, as soon as it can be
reached. The program ends when stdin is closed.

A version is the previous one with one byte in a hundred changed at random, so that there are deltas.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from bench.programs.noise_learner import NoiseLearner, print_json, run
from learner.config import LearnerConfig
from learner.coordinator.client import CoordinatorClient
from rollcast.policy.snapshot import Snapshot
from rollcast.runtime.config import load_config
from rollcast.runtime.errors import RollcastError
from rollcast.runtime.logs import configure_logging
from rollcast.runtime.process import die_with_parent, run_process
from rollcast.wire.ids import Version
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.tensors import tensor_table

_CHANGED_SHARE = 0.01
_FIND_S = 5.0  # after this wait the last known address of the origin is used
_QUEUED_MOST = 1000


class SteadyLearner(NoiseLearner):
    """A learner that publishes at intervals; see NoiseLearner.

    Args:
        interval_s: seconds between two versions.
    """

    def __init__(self, *joined: Any, interval_s: float) -> None:
        super().__init__(*joined)
        self._interval_s = interval_s
        self._state = bytearray()
        self._info: pb.RunInfo | None = None
        self._queued: asyncio.Queue[pb.VersionAnnouncement] = asyncio.Queue(_QUEUED_MOST)

    async def live(self, peers: int, commands: asyncio.StreamReader) -> None:
        """Publish a version at each interval until stdin is closed.

        Raises:
            RollcastError: joining or publishing failed.
        """
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession())
            publisher = await self.publisher(stack, http, peers, self._queue_announcement)
            print_json(event="ready")
            await commands.readline()
            announcing = asyncio.create_task(self._announce_queued())
            ended = asyncio.create_task(commands.read())
            version = 0
            while not ended.done():
                begun_s = time.monotonic()
                await publisher.publish(Version(version), self._next())
                print_json(event="published", version=version, at_s=time.time())
                self.forget(version)
                version += 1
                if announcing.done():
                    announcing.result()
                await asyncio.wait([ended], timeout=max(0.0, begun_s + self._interval_s - time.monotonic()))
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)

    def _next(self) -> Snapshot:
        size = self._size_bytes
        if not self._state:
            self._state[:] = os.urandom(size)
        places = np.random.default_rng().integers(0, size, max(1, int(size * _CHANGED_SHARE)))
        np.frombuffer(self._state, np.uint8)[places] += 1
        return Snapshot(tensor_table([("noise", "uint8", (size,))]), bytes(self._state))

    async def _queue_announcement(self, announcement: pb.VersionAnnouncement) -> bool:
        self._queued.put_nowait(announcement)
        return True

    async def _announce_queued(self) -> None:
        while True:
            await self._client.announce(await self._queued.get())

    async def _find_origin(self) -> pb.RunInfo:
        """Return the run as the coordinator describes it now, or as it last did if it cannot be reached."""
        try:
            async with asyncio.timeout(_FIND_S):
                self._info = await super()._find_origin()
        except (TimeoutError, RollcastError):
            if self._info is None:
                raise
        return self._info


def main() -> int:
    die_with_parent()
    config = load_config(Path(sys.argv[1]), LearnerConfig)
    configure_logging("learner", log_file=Path(sys.argv[2]))
    size_bytes, peers, limit_s, interval_s = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6])

    def make(enrolment: Enrolment, client: CoordinatorClient) -> SteadyLearner:
        return SteadyLearner(config, enrolment, client, size_bytes, limit_s, interval_s=interval_s)

    return run_process(lambda _: run(config, make, peers))


if __name__ == "__main__":
    sys.exit(main())
