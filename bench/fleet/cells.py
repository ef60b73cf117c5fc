"""Run cells beside the processes of a head: coordinator, origin, uplink and peers of each, as real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel

from peer.config import PeerConfig
from rollcast.cell.config import UplinkConfig
from rollcast.cli.processes import Fleet
from rollcast.runtime.errors import WaitTimedOut
from rollcast.runtime.run_folder import RunFolder, write_atomically

START_TIMEOUT_S = 300.0  # by the clock; a machine that runs other work takes long
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.05
_COMMANDS = {"coordinator": ("coordinator",), "uplink": ("cell",)}  # the others are peers


@dataclass(slots=True)
class Cell:
    """One cell of a head that runs on this machine.

    Args:
        head: the head's processes; its invite for cells must be written to its run folder.
        peers: workers of this cell.
    """

    head: Fleet
    name: str
    peers: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def folder(self) -> RunFolder:
        """Return the run folder of the cell's coordinator."""
        return RunFolder(self.head.folder.root / self.name)

    def prepare(self) -> None:
        """Write each process's configuration; the coordinator's is the head's with an invite of the head."""
        self.folder.prepare()
        config, invite = self.head.config, self.head.folder.secrets / "invite-cell.txt"
        coordinator = config.coordinator.model_copy(
            update={
                "run_folder": self.folder.root,
                "cell": config.coordinator.cell.model_copy(update={"invite_file": invite}),
                "join": config.coordinator.join.model_copy(update={"cells_max": 0, "peers_max": 64}),
            }
        )
        self._write("coordinator", coordinator)
        self._write("origin", self._peer(config.origin, "origin", role="origin"))
        self._write(
            "uplink",
            UplinkConfig(
                name=self.name,
                head_invite_file=invite,
                cell_invite_file=self.folder.secrets / "invite-learner.txt",
                state_folder=self.folder.root / "uplink",
                link=config.peer.link,
            ),
        )
        for number in range(1, self.peers + 1):
            self._write(f"peer-{number}", self._peer(config.peer, f"peer-{number}", role="peer"))

    async def start(self) -> None:
        """Start the coordinator, and once it listens the others.

        Raises:
            WaitTimedOut: the coordinator does not listen.
        """
        self.folder.endpoints.unlink(missing_ok=True)
        self._spawn("coordinator")
        end_s = time.monotonic() + START_TIMEOUT_S
        while not self.folder.endpoints.exists():
            if time.monotonic() > end_s:
                raise WaitTimedOut(
                    f"the coordinator of {self.name} does not listen", fix=f"see {self.log('coordinator')}"
                )
            await asyncio.sleep(_POLL_S)
        for name in ("origin", "uplink", *(f"peer-{number}" for number in range(1, self.peers + 1))):
            self._spawn(name)

    def restart(self, name: str) -> None:
        """Start a process that was killed again."""
        self._spawn(name)

    def kill(self, *names: str) -> None:
        """Kill processes of this cell with SIGKILL; all of them if none is named."""
        for name in names or tuple(self.processes):
            self.processes[name].kill()
            self.processes[name].wait()

    async def stop(self) -> None:
        """Stop every process in order; kill those that take too long."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._wait)
        self.kill()

    def _wait(self) -> None:
        end_s = time.monotonic() + STOP_TIMEOUT_S
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end_s - time.monotonic()))

    def ended(self) -> dict[str, int]:
        """Return the exit status of every process that has ended."""
        return {name: status for name, one in self.processes.items() if (status := one.poll()) is not None}

    def summary(self) -> dict[str, Any]:
        """Return the summary that the cell's coordinator wrote at its end."""
        found: dict[str, Any] = json.loads(self.folder.summary.read_text())
        return found

    def log(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self.folder.logs / f"{name}.log"

    def _peer(self, config: PeerConfig, name: str, *, role: str) -> PeerConfig:
        update: dict[str, Any] = {
            "role": role,
            "name": f"{self.name}-{name}",
            "invite_file": self.folder.secrets / f"invite-{role}.txt",
            "state_folder": self.folder.root / "members" / name,
            "limits": config.limits.model_copy(update={"polite": False}),
        }
        return config.model_copy(update=update)

    def _write(self, name: str, config: BaseModel) -> None:
        values = config.model_dump(mode="json", exclude_none=True)
        write_atomically(self.folder.config / f"{name}.toml", tomli_w.dumps(values).encode(), mode=0o600)

    def _spawn(self, name: str) -> None:
        config, log = self.folder.config / f"{name}.toml", self.log(name)
        command = _COMMANDS.get(name, ("peer", "run"))
        with log.open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "rollcast.cli.main",
                    *command,
                    str(config),
                    "--log-file",
                    str(log),
                    "--with-parent",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
