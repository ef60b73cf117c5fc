"""Manage workers on one machine, this one or another, through the agent that a command starts there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w

from capacity.providers.base import Running, WorkerTag
from capacity.providers.commands import run_command
from capacity.providers.config import RECONNECT_TIMEOUT_S, SystemdUse
from rollcast.runtime.errors import ProviderFailed

AGENT = ("-P", "-m", "capacity.providers.host_agent")
PEER_PROGRAM = (
    "{python}",
    "-P",
    "-m",
    "rollcast.cli.main",
    "peer",
    "run",
    "{folder}/peer.toml",
    "--log-file",
    "{folder}/peer.log",
)
STOP_GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL: a peer needs 2 s at most."""
_START_WAIT_SHARE = 0.6
_OVERHEAD_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAgent:
    """The client of the agent on one machine.

    Args:
        where: the machine's name, for people.
        command: command that starts the agent there; its standard input and output reach the agent.
        folder: folder on that machine for the folders of workers; ``~`` is the home there.
        systemd: whether workers are units of the user's systemd there.
        program: command that a worker runs; {python} and {folder} stand for the agent's interpreter and the worker's
            folder.
        remote: whether it is another machine than this one.
    """

    where: str
    command: Sequence[str]
    folder: str
    systemd: SystemdUse = "never"
    program: Sequence[str] = PEER_PROGRAM
    remote: bool = True

    async def start(
        self, tag: WorkerTag, invite: str, peer: Mapping[str, Any], upload_bytes_per_second: float, deadline_s: float
    ) -> Running:
        """Start a worker: see Provider.start. ``peer`` is its configuration, which ``peer_config`` completes."""
        config = peer_config(tag, peer, upload_bytes_per_second, remote=self.remote)
        answer = await self._ask(
            {
                "do": "start",
                "tag": str(tag),
                "files": {"peer.toml": tomli_w.dumps(config), "invite.txt": f"{invite}\n"},
                "program": list(self.program),
                "systemd": self.systemd,
                "wait_s": deadline_s * _START_WAIT_SHARE,
            },
            deadline_s,
        )
        return self._running(answer)

    async def stop(self, tag: WorkerTag, deadline_s: float) -> None:
        """Stop a worker: see Provider.stop."""
        grace_s = max(0.5, min(STOP_GRACE_S, deadline_s - _OVERHEAD_S))
        await self._ask({"do": "stop", "tag": str(tag), "grace_s": grace_s}, deadline_s)

    async def list(self, run_id: str, deadline_s: float) -> tuple[Running, ...]:
        """Return the running workers of a run: see Provider.list."""
        answer = await self._ask({"do": "list", "run_id": run_id}, deadline_s)
        return tuple(found for one in answer["running"] if (found := self._if_ours(one, run_id)) is not None)

    def _if_ours(self, one: Any, run_id: str) -> Running | None:
        """Parse one answer; None if it belongs to another run, whose id may begin with this run's id."""
        try:
            found = self._running(one)
        except ProviderFailed:
            return None
        return found if found.tag.run_id == run_id else None

    async def _ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        data = json.dumps({**request, "folder": self.folder}).encode()
        done = await run_command(self.command, data, deadline_s=deadline_s)
        try:
            answer = json.loads(done.output)
            if done.status == 0 and isinstance(answer, dict):
                if "error" in answer:
                    raise ProviderFailed(f"{self.where} cannot {request['do']} workers", cause=str(answer["error"]))
                return answer
        except ValueError:
            pass
        raise ProviderFailed(
            f"no answer from {self.where}",
            cause=f"{self.command[0]} ended with status {done.status}: {done.last_words()}",
            fix="run that command by hand; the machine needs a Python with Rollcast (docs/providers.md)",
        )

    def _running(self, answer: dict[str, Any]) -> Running:
        try:
            tag = WorkerTag.parse(str(answer["tag"]))
            return Running(tag, f"{self.where}, process {int(answer['pid'])}", float(answer["started_unix_s"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ProviderFailed(f"the answer of {self.where} is malformed", cause=str(error)) from None


def peer_config(
    tag: WorkerTag, peer: Mapping[str, Any], upload_bytes_per_second: float, *, remote: bool
) -> dict[str, Any]:
    """Return the configuration of a worker's peer process: the operator's, with a name and a cap of its own.

    A worker whose traffic costs money is capped at its offer's rate, towards its own network too: the budget counts on
    that bound. A worker on another machine advertises no address unless its configuration has one.
    """
    config = {
        "join_timeout_s": RECONNECT_TIMEOUT_S,
        "reconnect_timeout_s": RECONNECT_TIMEOUT_S,
        **peer,
        "role": "peer",
        "name": f"{tag.worker_id}.{tag.incarnation}",
        "invite_file": "{folder}/invite.txt",
        "state_folder": "{folder}/state",
    }
    link = dict(peer.get("link", {}))
    if remote and not {"host", "advertise"} & link.keys():
        link["advertise"] = "none"
    if upload_bytes_per_second:
        link |= {"lan_exempt": False, "upload_mbit_s_max": upload_bytes_per_second * 8 / 1e6}
    return {**config, "link": link}
