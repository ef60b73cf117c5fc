"""Put together what the owner's page shows and does: report, the last hour, log, limits, identity, acts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from peer.donor.control.control import Command
from peer.donor.control.limits import OwnerLimits, OwnerLimitsBook
from peer.donor.page.history import EVERY_S, History
from peer.donor.page.server import PageServer
from peer.limits.schedule import Schedule
from rollcast.runtime.config import describe
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut
from rollcast.runtime.install import module_command
from rollcast.runtime.logs import recent_lines

_BUG_REPORT_DEADLINE_S = 60.0


class OwnersPage:
    """Serve the owner's page, and keep the last hour's samples for it.

    Args:
        limits: the owner's limits.
        report: returns the peer's report, see peer.donor.report.
        commands: commands of the control socket, by name.
        identity: returns what ``identity_report`` returns.
        local_now: returns the owner's wall clock, which names bug reports.
        unix_now: returns seconds since 1970, for the last hour's samples.
    """

    def __init__(
        self,
        limits: OwnerLimitsBook,
        *,
        report: Callable[[], dict[str, Any]],
        commands: Mapping[str, Command],
        identity: Callable[[], dict[str, Any]],
        local_now: Callable[[], datetime],
        unix_now: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._report = report
        self._commands = commands
        self._local_now = local_now
        self._unix_now = unix_now
        self._history = History()
        self._folder = limits.config.state_folder
        self.server = PageServer(
            self._folder,
            commands=commands,
            reads={"history": self._history.to_json, "limits": self._limits_now, "identity": identity},
            topics={"report": report, "sample": self._history.newest, "log": self._log},
            bug_report=self._bug_report,
        )

    async def run(self) -> None:
        """Serve until cancelled, and take a sample every EVERY_S seconds.

        Raises:
            RunFolderError: port and token cannot be saved.
        """
        async with self.server.serving():
            while True:
                self._history.sample(self._report(), self._unix_now())
                await asyncio.sleep(EVERY_S)

    def _log(self) -> dict[str, Any]:
        return {"lines": recent_lines()}

    def _limits_now(self) -> dict[str, Any]:
        """Return the limits, what each means, and the hours as minutes of the week from Monday 00:00."""
        limits = self._limits.limits
        hours = {"compute_hours": limits.compute_hours, "network_hours": limits.network_hours}
        return {
            **self._commands["limits"]({"do": "limits"}),
            "meanings": {key: meaning for key, _default, meaning in describe(OwnerLimits)},
            "weeks": {name: Schedule.parse(lines).windows for name, lines in hours.items()},
        }

    async def _bug_report(self) -> tuple[str, bytes]:
        """Return the name and the bytes of a bug report, which `rollcast peer bugreport` writes.

        Raises:
            ProcessFailed, WaitTimedOut: the command failed or took too long.
        """
        name = f"rollcast-bugreport-{self._local_now():%Y%m%d-%H%M%S}.tar.gz"
        with tempfile.TemporaryDirectory(prefix="rollcast-") as folder:
            out = Path(folder) / name
            command = [*module_command("rollcast.cli.main"), "peer", "bugreport"]
            options = ["--out", str(out), "--state", str(self._folder)]
            process = await asyncio.create_subprocess_exec(
                *command, *options, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
            )
            try:
                async with asyncio.timeout(_BUG_REPORT_DEADLINE_S):
                    _, said = await process.communicate()
            except TimeoutError:
                process.kill()
                await process.wait()
                raise WaitTimedOut("the bug report took too long", fix="run `rollcast peer bugreport`") from None
            if process.returncode != 0:
                words = said.decode(errors="replace").strip().splitlines()
                raise ProcessFailed("the bug report was not written", cause=words[0] if words else "it gave no reason")
            return name, await asyncio.to_thread(out.read_bytes)


def identity_report(folder: Path, report: Mapping[str, Any], instance_id: str, public_name: str) -> dict[str, Any]:
    """Return who this machine is, and where that is saved. The key itself never leaves through the page."""
    return {
        "peer_id": report["peer_id"],
        "run_id": report["run_id"],
        "name": report["name"],
        "public_name": public_name,
        "instance_id": instance_id,
        "key_file": str((folder / "identity.key").absolute()),
        "state_folder": str(folder.absolute()),
        "software": report["software"],
    }
