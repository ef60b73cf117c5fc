"""Run workers as processes of this machine, at the lowest priority; they outlive the coordinator that started them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from capacity.providers.base import Listing, Offer, Running, WorkerTag
from capacity.providers.config import ProviderConfigs, tail_s
from capacity.providers.hosts import AGENT, PEER_PROGRAM, HostAgent
from capacity.providers.machines import Machine, find_machine


class LocalProvider:
    """The provider of this machine; see Provider.

    Each worker has a folder of its own, with its identity, configuration, versions and log.
    """

    def __init__(
        self,
        name: str,
        machines: Sequence[Machine],
        config: ProviderConfigs,
        folder: Path,
        *,
        program: Sequence[str] = PEER_PROGRAM,
    ) -> None:
        """Prepare the agent; nothing is started.

        Args:
            folder: folder that holds the workers' folders.
            program: command that a worker runs.
        """
        self._name = name
        self._machines = {machine.worker_id: machine for machine in machines}
        self._peers = {machine.worker_id: machine.peer(config.peer, config.local.peer) for machine in machines}
        self._agent = HostAgent(
            where="this machine",
            remote=False,
            command=[sys.executable, *AGENT],
            folder=str(folder.absolute()),
            program=program,
        )

    @property
    def name(self) -> str:
        return self._name

    async def offers(self, *, deadline_s: float) -> tuple[Offer, ...]:
        return tuple(machine.offer(tail_s(self._peers[one])) for one, machine in self._machines.items())

    async def start(self, tag: WorkerTag, invite: str, *, deadline_s: float) -> Running:
        machine = find_machine(self._machines, tag.worker_id, self.name)
        cap = machine.upload_cap_bytes_per_second
        return await self._agent.start(tag, invite, self._peers[tag.worker_id], cap, deadline_s)

    async def stop(self, tag: WorkerTag, *, deadline_s: float) -> None:
        await self._agent.stop(tag, deadline_s)

    async def list(self, run_id: str, *, deadline_s: float) -> Listing:
        return Listing(await self._agent.list(run_id, deadline_s))

    async def close(self) -> None:
        pass
