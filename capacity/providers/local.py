"""Run workers as processes of this machine, at the lowest priority; they outlive the coordinator that started them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capacity.providers.base import Listing, Offer, Running, WorkerTag
from capacity.providers.config import LocalPool, tail_s
from capacity.providers.hosts import AGENT, PEER_PROGRAM, HostAgent


class LocalProvider:
    """The provider of this machine; see Provider.

    Each worker has a folder of its own, with its identity, configuration, versions and log.
    """

    def __init__(
        self, pool: LocalPool, folder: Path, peer: Mapping[str, Any], *, program: Sequence[str] = PEER_PROGRAM
    ) -> None:
        """Prepare the agent; nothing is started.

        Args:
            folder: folder that holds the workers' folders.
            peer: configuration of every peer, below that of the pool.
            program: command that a worker runs.
        """
        self._pool = pool
        self._peer = {**peer, **pool.peer}
        self._agent = HostAgent(
            where="this machine",
            remote=False,
            command=[sys.executable, *AGENT],
            folder=str(folder.absolute()),
            program=program,
        )

    @property
    def name(self) -> str:
        return self._pool.name

    async def offers(self, *, deadline_s: float) -> tuple[Offer, ...]:
        tail = tail_s(self._peer)
        return tuple(self._pool.offer(worker_id, self.name, tail) for worker_id in self._pool.worker_ids())

    async def start(self, tag: WorkerTag, invite: str, *, deadline_s: float) -> Running:
        return await self._agent.start(tag, invite, self._peer, self._pool.upload_cap_bytes_per_second, deadline_s)

    async def stop(self, tag: WorkerTag, *, deadline_s: float) -> None:
        await self._agent.stop(tag, deadline_s)

    async def list(self, run_id: str, *, deadline_s: float) -> Listing:
        return Listing(await self._agent.list(run_id, deadline_s))

    async def close(self) -> None:
        pass
