"""Serve a coordinator's HTTP side over a simulated fleet that runs at the pace of the wall clock."""

from __future__ import annotations

import asyncio
import string
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

from bench.shown.coordinator import Keeping, ShownCoordinator
from bench.shown.fleet import ShownFleet, draw_machines
from coordinator.api.wiring import HttpParts, http_app
from coordinator.config.config import CoordinatorConfig
from coordinator.core.core import CoordinatorCore
from coordinator.core.events import events as ev
from coordinator.core.status.turns import Turns
from coordinator.fleet.setup import FleetHandle
from coordinator.http.server import HttpServer
from coordinator.http.tokens import operator_key
from coordinator.join import InviteIssuer, JoinDesk
from coordinator.ledger.disk_guard import DiskGuard
from coordinator.ledger.saved_orders import Orders
from coordinator.metrics.metrics import CoordinatorMetrics
from coordinator.metrics.sinks.file import FileSink
from coordinator.shell.shell import Shell
from coordinator.shell.upload_refusal import UploadRefusal
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA
from rollcast.wire.ids import PeerId, RunId, Version
from rollcast.wire.text.tokenizer import Tokenizer

RUN_ID = RunId("simulated")
SLICE_S = 0.05  # of wall time, the longest slice simulated at once
BEHIND_MAX_S = 2.0  # of virtual time; a larger backlog is skipped
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class ShownShell:
    """The part of a coordinator's shell that its HTTP side uses."""

    ended_because, ended_for_good = "", False

    def __init__(self, fleet: ShownFleet) -> None:
        self._fleet = fleet
        self.apply = fleet.coordinator.apply

    def clock(self) -> float:
        """Return the virtual time in seconds."""
        return self._fleet.ground.agenda.now

    @property
    def core(self) -> CoordinatorCore:
        core = self._fleet.coordinator.core
        assert core is not None, "the coordinator has booted"
        return core

    def status(self) -> dict[str, Any]:
        return self.core.status(self.clock()).to_json()

    def broadcast(self) -> Turns[dict[str, Any]]:
        return (yield from self.core.broadcast(self.clock())).to_json()


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A running simulated fleet and the address of its dashboard."""

    fleet: ShownFleet
    url: str
    key: str  # the operator's token
    failed: asyncio.Future[BaseException]

    @property
    def page(self) -> str:
        """Return the dashboard's address with the operator's key in its fragment, which never reaches the server."""
        return f"{self.url}/#token={self.key}"


@asynccontextmanager
async def shown_run(folder: Path, *, workers: int, port: int, seed: int, warm_up_s: float) -> AsyncIterator[ShownRun]:
    """Serve a simulated fleet of ``workers`` on a port of loopback until the context ends.

    Args:
        folder: run folder; created if it does not exist.
        warm_up_s: virtual seconds that pass before anything is served.
    """
    run_folder = RunFolder(folder).prepare()
    async with AsyncExitStack() as stack:
        ledger = Ledger.open(run_folder.ledger)
        stack.push_async_callback(ledger.close)
        failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        machines = draw_machines(workers, seed)
        by_id = {machine.peer_id: machine for machine in machines}

        def fail(error: BaseException) -> None:
            if not failed.done():
                failed.set_result(error)

        keeping = Keeping(ledger, FileSink(run_folder.metrics), by_id, fail)
        fleet = ShownFleet(machines, seed, lambda ground: ShownCoordinator(ground, keeping))
        await _warm_up(fleet, warm_up_s)
        coordinator = _coordinator(fleet, run_folder, ledger)
        app = await http_app(coordinator, hosts=LOCAL, open_reading=True)
        server = await HttpServer.start(app, host="127.0.0.1", port=port, tls=None)
        stack.push_async_callback(server.stop)
        coordinator.invites.http_url = url = f"http://127.0.0.1:{server.port}"
        living = asyncio.create_task(_live(fleet))
        stack.push_async_callback(_cancel, living)
        yield ShownRun(fleet, url, operator_key(run_folder.secrets), failed)


async def _warm_up(fleet: ShownFleet, seconds: float) -> None:
    """Boot the coordinator and let virtual time pass, yielding to the event loop so that the ledger keeps up."""
    agenda = fleet.ground.agenda
    until_s = agenda.now + seconds
    while agenda.now < until_s or fleet.coordinator.core is None:
        fleet.run(0.5)
        await asyncio.sleep(0)


async def _live(fleet: ShownFleet) -> None:
    """Run the simulation at the pace of the wall clock without end; on a machine too slow for that, more slowly."""
    Mischief(fleet)
    agenda, clock = fleet.ground.agenda, time.monotonic
    behind_s = agenda.now - clock()
    while True:
        due_s = clock() + behind_s - agenda.now
        if due_s > BEHIND_MAX_S:
            behind_s -= due_s - BEHIND_MAX_S
            due_s = BEHIND_MAX_S
        fleet.run(min(due_s, SLICE_S))
        await asyncio.sleep(0 if due_s > SLICE_S else SLICE_S / 2)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class Mischief:
    """Random trouble for a fleet: machines leave and return, fall silent or slow down; one relays corrupt chunks."""

    def __init__(self, fleet: ShownFleet) -> None:
        self._fleet = fleet
        self._random = Random(fleet.ground.chance.seed)
        self._gap_s = max(1.0, 4000.0 / len(fleet.peers))
        fleet.ground.agenda.after(5.0, self._next)
        fleet.ground.agenda.after(20.0, self._corrupt)

    def _next(self) -> None:
        agenda, random = self._fleet.ground.agenda, self._random
        agenda.after(random.expovariate(1.0 / self._gap_s), self._next)
        peer = random.choice(self._fleet.peers)
        if not peer.running or peer.frozen:
            return
        what = random.random()
        if what < 0.5:
            self._fleet.down(peer, random.uniform(10.0, 120.0))
        elif what < 0.8:
            peer.freeze()
            agenda.after(random.uniform(5.0, 60.0), peer.thaw)
        else:
            peer.slow_down(3.0)
            agenda.after(random.uniform(30.0, 120.0), peer.slow_down, 1.0)

    def _corrupt(self) -> None:
        """Have a child accuse one peer of a corrupt chunk, with a receipt, so that the coordinator quarantines it."""
        coordinator, peers = self._fleet.coordinator, self._fleet.peers
        if len(peers) < 8 or coordinator.core is None or coordinator.core.newest_version is None:
            return
        part = coordinator.core.state.relay
        culprit = next((one.peer_id for one in peers if len(part.children_of(one.peer_id)) >= 3), None)
        if culprit is not None:
            version, accuser = Version(coordinator.core.newest_version), part.children_of(culprit)[0]
            coordinator.apply(ev.PeerAccused(accuser, PeerId(culprit), version, 0, "hash", b"a receipt"))


def _coordinator(fleet: ShownFleet, folder: RunFolder, ledger: Ledger) -> HttpParts:
    """Return the components that the HTTP side is built from; the simulated fleet takes the shell's place."""
    shell, learner = ShownShell(fleet), Identity.generate()
    config = CoordinatorConfig.model_validate(
        {
            "run": {"name": f"simulated-{len(fleet.peers)}", "steps": fleet.settings.steps},
            "task": {"kind": "jsonl", "path": "simulated.jsonl"},
            "learner_public_key": learner.public_key.hex(),
            "run_folder": str(folder.root),
        }
    )
    ca = RunCA.load_or_create(folder.secrets, RUN_ID)
    desk = JoinDesk(
        run_id=RUN_ID,
        ca=ca,
        ledger=ledger,
        learner_public_key=learner.public_key,
        certificate_lifetime_s=config.join.certificate_lifetime_s,
    )
    desk.grpc_address = "127.0.0.1:1"
    fleet_handle = FleetHandle()
    metrics = CoordinatorMetrics(lambda: fleet_handle.merged(shell.status()), shell.broadcast)
    disk = DiskGuard(folder.root, free_bytes_min=0, ballast_bytes=0)
    invites = InviteIssuer(desk, run_id=RUN_ID, ca_sha256=ca.fingerprint, learner_public_key=learner.public_key.hex())
    return HttpParts(
        config=config,
        folder=folder,
        run_id=RUN_ID,
        ledger=ledger,
        shell=cast(Shell, shell),
        desk=desk,
        invites=invites,
        metrics=metrics,
        refusal=UploadRefusal(folder.root, disk, ledger, metrics.loop_lag, is_shared=False),
        orders=Orders(),
        fleet_handle=fleet_handle,
        tokenizer=Tokenizer((), string.printable),
    )
