"""Run workers on machines that ssh reaches: as units of the user's systemd there, or as plain processes.

OpenSSH's own client makes the connections, so that its configuration, agent, jump hosts and known hosts apply. An
unknown host key is rejected, and ssh never prompts. The remote command is fixed; everything else, the invite included,
goes through its standard input.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from capacity.providers.base import Listing, Offer, Running, WorkerTag
from capacity.providers.config import SshHost, SshPool, tail_s
from capacity.providers.hosts import AGENT, PEER_PROGRAM, HostAgent
from rollcast.runtime.errors import ProviderFailed

_CONNECTIONS_AT_ONCE = 16
_ALIVE_INTERVAL_S = 5
_ALIVE_COUNT = 3


class SshProvider:
    """The provider of machines that ssh reaches, one worker on each; see Provider."""

    def __init__(self, pool: SshPool, peer: Mapping[str, Any], *, program: Sequence[str] = PEER_PROGRAM) -> None:
        """Prepare an agent for each host; nothing is started and no connection is made.

        Args:
            peer: configuration of every peer, below that of the pool and of each host.
            program: command that a worker runs.
        """
        self._pool = pool
        self._hosts = {host.id: host for host in pool.hosts}
        self._peers = {host.id: {**peer, **pool.peer, **host.peer} for host in pool.hosts}
        self._agents = {host.id: _agent(pool, host, program) for host in pool.hosts}
        self._connections = asyncio.Semaphore(_CONNECTIONS_AT_ONCE)

    @property
    def name(self) -> str:
        return self._pool.name

    async def offers(self, *, deadline_s: float) -> tuple[Offer, ...]:
        return tuple(host.offer(host.id, self.name, tail_s(self._peers[host.id])) for host in self._pool.hosts)

    async def start(self, tag: WorkerTag, invite: str, *, deadline_s: float) -> Running:
        agent, host = self._agent(tag.worker_id), self._hosts[tag.worker_id]
        async with self._connections:
            return await agent.start(tag, invite, self._peers[host.id], host.upload_cap_bytes_per_second, deadline_s)

    async def stop(self, tag: WorkerTag, *, deadline_s: float) -> None:
        async with self._connections:
            await self._agent(tag.worker_id).stop(tag, deadline_s)

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

    def _agent(self, worker_id: str) -> HostAgent:
        if worker_id not in self._agents:
            raise ProviderFailed(f"{self.name} has no host {worker_id}", fix="put it back into the configuration")
        return self._agents[worker_id]


def _agent(pool: SshPool, host: SshHost, program: Sequence[str]) -> HostAgent:
    return HostAgent(
        where=host.address,
        command=ssh_command(pool, host),
        folder=host.folder,
        systemd=pool.systemd,
        program=program,
    )


def ssh_command(pool: SshPool, host: SshHost) -> list[str]:
    """Return the command that starts the agent on a host; its last argument is quoted for the shell there."""
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": str(pool.connect_timeout_s),
        "ServerAliveInterval": str(_ALIVE_INTERVAL_S),
        "ServerAliveCountMax": str(_ALIVE_COUNT),
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",
        "LogLevel": "ERROR",
    }
    if pool.known_hosts is not None:
        options |= {"UserKnownHostsFile": str(pool.known_hosts), "GlobalKnownHostsFile": "/dev/null"}
    if pool.identity_file is not None:
        options |= {"IdentityFile": str(pool.identity_file), "IdentitiesOnly": "yes"}
    flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    config = [] if pool.config_file is None else ["-F", str(pool.config_file)]
    login = [*(["-l", host.user] if host.user else []), *(["-p", str(host.port)] if host.port else [])]
    return [pool.ssh, "-T", *config, *flags, *login, "--", host.address, _remote(host)]


def _remote(host: SshHost) -> str:
    """Return the remote command, quoted except for a leading ~/, which the shell there expands."""
    home, rest = ("~/", host.python[2:]) if host.python.startswith("~/") else ("", host.python)
    return f"exec {home}{shlex.quote(rest)} {shlex.join(AGENT)}"
