"""Run the coordinator's side of a fleet over local processes: in a test, or in a process that kills itself."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from capacity.fleet.events import WorkersWanted
from capacity.fleet.journal import FleetJournal
from capacity.providers.base import Running, WorkerTag
from capacity.providers.local import LocalProvider
from coordinator.config.fleet import ProvidersConfig
from coordinator.fleet.fleet import FleetCallbacks, ProviderFleet, UnixClock
from coordinator.fleet.journal import FileJournal
from coordinator.fleet.setup import make_fleet
from rollcast.wire.ids import PeerId
from tests.capacity.providers.pool_machines import machines
from tests.capacity.providers.workers import SLEEPER

RUN = "run-1"


class Coordinator:
    """The coordinator as a fleet sees it; a test sets its connected peers."""

    def __init__(self) -> None:
        self.peers: dict[PeerId, int] = {}
        self.notes: list[tuple[str, str]] = []
        self.dismissed: list[PeerId] = []
        self.failures: list[Exception] = []
        self.invites = 0

    async def invite(self) -> tuple[str, bytes]:
        self.invites += 1
        return f"invite {self.invites}", b"%d" % self.invites

    def here(self) -> Mapping[PeerId, int]:
        return self.peers

    def dismiss(self, peer_id: PeerId, reason: str) -> None:
        self.dismissed.append(peer_id)
        self.peers.pop(peer_id, None)

    def callbacks(self) -> FleetCallbacks:
        return FleetCallbacks(
            invite=self.invite,
            here=self.here,
            dismiss=self.dismiss,
            note=lambda kind, subject, detail: self.notes.append((kind, subject)),
            fail=self.failures.append,
        )


class Deadly(LocalProvider):
    """Kills this process before, during or after the start of a worker, as ``point`` says."""

    point = ""

    async def start(self, tag: WorkerTag, invite: str, *, deadline_s: float) -> Running:
        if self.point == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.point == "during":
            asyncio.get_running_loop().call_later(0.15, os.kill, os.getpid(), signal.SIGKILL)
        found = await super().start(tag, invite, deadline_s=deadline_s)
        if self.point == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def fleet_over(folder: Path, coordinator: Coordinator, point: str = "", usd_max: float | None = None) -> ProviderFleet:
    """Return a fleet of two local workers at 3.6 $/h each, listed twice a second."""
    two = machines({"worker_id": "local", "count": 2, "usd_per_hour": 3.6, "start": "local"})
    config = ProvidersConfig(want="all", list_every_s=0.5, mark_every_s=1.0, drain_timeout_s=5.0, usd_max=usd_max)
    provider = Deadly("local", two, config, folder / "workers", program=SLEEPER)
    provider.point = point
    journal = FileJournal(FleetJournal.open(folder / "journal.jsonl"))
    return make_fleet(config, RUN, {"local": provider}, journal, coordinator.callbacks(), UnixClock())


async def main(folder: Path, point: str) -> None:
    fleet = fleet_over(folder, Coordinator(), point)
    fleet.submit(WorkersWanted({"local-1": "a test wants it"}))
    await fleet.run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
