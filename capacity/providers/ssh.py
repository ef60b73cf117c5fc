"""Run workers on machines that ssh reaches: as units of the user's systemd there, or as plain processes.

OpenSSH's own client makes the connections, so that its configuration, agent, jump hosts and known hosts apply. An
unknown host key is rejected, and ssh never prompts. The remote command is fixed; everything else, the invite included,
goes through its standard input.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence

from capacity.inputs.pool.rows import PoolRow
from capacity.inputs.pool.starts import Address
from capacity.providers.base import Listing, Offer, Running, WorkerTag
from capacity.providers.config import ProviderConfigs, SshConfig, tail_s
from capacity.providers.hosts import AGENT, PEER_PROGRAM, HostAgent
from capacity.providers.machines import Machine, find_machine
from rollcast.runtime.errors import ProviderFailed

_CONNECTIONS_AT_ONCE = 16
_ALIVE_INTERVAL_S = 5
_ALIVE_COUNT = 3


class SshProvider:
    """The provider of machines that ssh reaches, one worker on each; see Provider."""

    def __init__(
        self,
        name: str,
        machines: Sequence[Machine],
        config: ProviderConfigs,
        *,
        program: Sequence[str] = PEER_PROGRAM,
    ) -> None:
        """Prepare an agent for each machine; nothing is started and no connection is made.

        Args:
            program: command that a worker runs.
        """
        self._name = name
        self._machines = {machine.worker_id: machine for machine in machines}
        self._peers = {machine.worker_id: machine.peer(config.peer, config.ssh.peer) for machine in machines}
        self._agents = {machine.worker_id: _agent(config.ssh, machine, program) for machine in machines}
        self._connections = asyncio.Semaphore(_CONNECTIONS_AT_ONCE)

    @property
    def name(self) -> str:
        return self._name

    async def offers(self, *, deadline_s: float) -> tuple[Offer, ...]:
        return tuple(machine.offer(tail_s(self._peers[one])) for one, machine in self._machines.items())

    async def start(self, tag: WorkerTag, invite: str, *, deadline_s: float) -> Running:
        machine = find_machine(self._machines, tag.worker_id, self.name)
        agent, peer = self._agents[tag.worker_id], self._peers[tag.worker_id]
        async with self._connections:
            return await agent.start(tag, invite, peer, machine.upload_cap_bytes_per_second, deadline_s)

    async def stop(self, tag: WorkerTag, *, deadline_s: float) -> None:
        find_machine(self._machines, tag.worker_id, self.name)
        async with self._connections:
            await self._agents[tag.worker_id].stop(tag, deadline_s)

    async def list(self, run_id: str, *, deadline_s: float) -> Listing:
        async def ask(worker_id: str) -> Listing:
            async with self._connections:
                try:
                    return Listing(await self._agents[worker_id].list(run_id, deadline_s))
                except ProviderFailed as error:
                    return Listing(silent={worker_id: str(error)})

        found = await asyncio.gather(*(ask(worker_id) for worker_id in self._agents))
        return Listing(
            tuple(running for one in found for running in one.running),
            {worker_id: why for one in found for worker_id, why in one.silent.items()},
        )

    async def close(self) -> None:
        pass


def _agent(config: SshConfig, machine: Machine, program: Sequence[str]) -> HostAgent:
    address = ssh_address(machine.row)
    return HostAgent(
        where=address.host,
        command=ssh_command(config, address, machine.row.python or config.python),
        folder=config.folder,
        systemd=config.systemd,
        program=program,
    )


def ssh_address(row: PoolRow) -> Address:
    """Return the address that ssh dials for a row: its own, or the worker's name as an alias of ssh's configuration."""
    return Address.parse(row.address or row.worker_id)


def ssh_command(config: SshConfig, address: Address, python: str) -> list[str]:
    """Return the command that starts the agent on a machine; its last argument is quoted for the shell there."""
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": str(config.connect_timeout_s),
        "ServerAliveInterval": str(_ALIVE_INTERVAL_S),
        "ServerAliveCountMax": str(_ALIVE_COUNT),
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",
        "LogLevel": "ERROR",
    }
    if config.known_hosts is not None:
        options |= {"UserKnownHostsFile": str(config.known_hosts), "GlobalKnownHostsFile": "/dev/null"}
    if config.identity_file is not None:
        options |= {"IdentityFile": str(config.identity_file), "IdentitiesOnly": "yes"}
    flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    file = [] if config.config_file is None else ["-F", str(config.config_file)]
    login = [*(["-l", address.user] if address.user else []), *(["-p", str(address.port)] if address.port else [])]
    return [config.ssh, "-T", *file, *flags, *login, "--", address.host, _remote(python)]


def _remote(python: str) -> str:
    """Return the remote command, quoted except for a leading ~/, which the shell there expands."""
    home, rest = ("~/", python[2:]) if python.startswith("~/") else ("", python)
    return f"exec {home}{shlex.quote(rest)} {shlex.join(AGENT)}"
