"""Build the fleet of workers from the coordinator's configuration, and connect it to the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from capacity.fleet.budget import Limits
from capacity.fleet.events import LimitsChanged
from capacity.fleet.fleet import FleetManager
from capacity.fleet.overview import NO_FLEET, FleetOverview, overview_of
from capacity.fleet.state import FleetSettings
from capacity.providers.base import Provider
from coordinator.config.fleet import ProvidersConfig
from coordinator.core.events.actions import SetBudget
from coordinator.core.events.prices import Budget
from coordinator.fleet.applied import AppliedWorkers
from coordinator.fleet.fleet import Deadlines, FleetCallbacks, ProviderFleet, UnixClock, jitter
from coordinator.fleet.journal import Journal, open_journal
from coordinator.fleet.wanted import WantedWorkers
from coordinator.join import token_hash
from coordinator.metrics.fleet import build_spending
from rollcast.runtime.background import or_fail
from rollcast.runtime.errors import MalformedMessage
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import PeerId
from rollcast.wire.joining.invite import Invite

if TYPE_CHECKING:
    from coordinator.ledger.store import RunStore
    from coordinator.shell.sessions import Sessions
    from coordinator.shell.shell import Shell

log = structlog.get_logger()

WANTED_EVERY_S = 1.0
NO_PEERS_S = 10.0
ALL_WANTED = "all offered workers are wanted"


class FleetHandle:
    """The coordinator's fleet; None before it runs, and without providers.

    ``applied`` is the set that operators ask for; None unless that decides which workers run.
    """

    def __init__(self) -> None:
        self.fleet: ProviderFleet | None = None
        self.applied: AppliedWorkers | None = None
        self._want = ""

    def run(self, fleet: ProviderFleet, applied: AppliedWorkers | None, want: str) -> None:
        """Take the fleet that was started, and what decides which of its workers run."""
        self.fleet, self.applied, self._want = fleet, applied, want

    def overview(self) -> FleetOverview:
        """Return all workers on offer with their states."""
        if self.fleet is None:
            return NO_FLEET
        known = self.fleet.offers_known
        return overview_of(self.fleet.manager, self.fleet.wanted, want=self._want, offers_known=known)

    async def apply(self, start: Iterable[str], stop: Iterable[str], reason: str) -> FleetOverview:
        """Add workers to the applied set and take others out, durably.

        Raises:
            MalformedMessage: another setting decides which workers run, or there is no such worker on offer.
            StoreError: the disk refuses.
        """
        if self.fleet is None or self.applied is None:
            raise MalformedMessage(
                "this run starts no workers on request",
                cause=f'providers.want is "{self._want}"' if self._want else "no pool is configured",
                fix='set providers.pool and providers.want = "apply", and restart the coordinator',
            )
        wanted = list(start)
        unknown = set(wanted) - {offer.worker.worker_id for offer in self.fleet.manager.offers}
        if unknown:
            raise MalformedMessage(
                f"the run's pool has no worker {min(unknown)}",
                cause=f"{len(unknown)} of the {len(wanted)} workers are not on offer",
                fix="add their rows to the pool, and restart the coordinator",
            )
        await self.applied.change(wanted, stop, reason)
        self.fleet.want(self.applied.reasons)
        return self.overview()

    def merged(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run's status with the money spent under ``spending``; None there if no provider is configured."""
        return {**status, "spending": self.spending(int(status["rollouts"]["accepted"]))}

    def spending(self, accepted_rollouts: int) -> dict[str, Any] | None:
        """Return the money spent on workers as JSON values; None if no provider is configured."""
        return None if self.fleet is None else build_spending(self.fleet.manager, accepted_rollouts).to_json()

    def set_budget(self, budget: Budget | SetBudget) -> None:
        """Set the budget for workers at providers."""
        if self.fleet is not None:
            self.fleet.submit(LimitsChanged(budget.usd_per_hour_max, budget.usd_total_max))

    async def end(self, reason: str, timeout_s: float) -> None:
        """End the run for good: stop all workers, or log those that may still run."""
        if self.fleet is not None:
            await self.fleet.end(reason, timeout_s)


async def start_fleet(
    config: ProvidersConfig, run_folder: Path, run_id: str, callbacks: FleetCallbacks, ledger: RunStore
) -> ProviderFleet | None:
    """Resume the run's fleet; returns None if there is none and no pool is configured.

    Raises:
        StoreError: its journal cannot be used.
        PoolError, ConfigError: the pool or the demand cannot be used.
    """
    journal = await open_journal(ledger, RunFolder(run_folder).fleet_journal, may_create=config.pool is not None)
    if journal is None:
        return None
    # With the planner's inputs and the providers they are a tenth of a coordinator's imports; most runs need neither.
    from coordinator.fleet.machines import read_machines
    from coordinator.fleet.providers import make_providers

    machines = () if config.pool is None else await asyncio.to_thread(read_machines, config.pool, config.demand)
    providers = make_providers(machines, config, RunFolder(run_folder).fleet_journal.parent)
    return make_fleet(config, run_id, providers, journal, callbacks, UnixClock())


def make_fleet(
    config: ProvidersConfig,
    run_id: str,
    providers: Mapping[str, Provider],
    journal: Journal,
    callbacks: FleetCallbacks,
    clock: Callable[[], float],
) -> ProviderFleet:
    """Build the fleet from its journal. Providers that only the journal names are queried too, and fail visibly."""
    restored = journal.content.restored()
    names = tuple(dict.fromkeys([*providers, *(one.provider for one in restored.opened)]))
    settings = FleetSettings(
        run_id=run_id,
        providers=names,
        limits=Limits(
            usd_per_hour_max=config.usd_per_hour_max, usd_max=config.usd_max, look_every_s=config.mark_every_s
        ),
        start_timeout_s=config.start_timeout_s,
        drain_timeout_s=config.drain_timeout_s,
        list_every_s=config.list_every_s,
    )
    deadlines = Deadlines(start_s=config.start_timeout_s, stop_s=config.stop_timeout_s, ask_s=config.call_timeout_s)
    manager = FleetManager(settings, restored, jitter(), clock())
    return ProviderFleet(manager, providers, journal, callbacks, deadlines, clock)


def coroutines(fleet: ProviderFleet, handle: FleetHandle, shell: Shell, want: str) -> list[Coroutine[Any, Any, None]]:
    """Return coroutines that each run until cancelled; a failure in one ends the run."""
    if handle.applied is not None:
        wanting = want_applied(fleet, handle.applied)
    else:
        wanting = want_all(fleet) if want == "all" else want_planned(fleet, shell)
    return [or_fail(work, shell.fail) for work in (fleet.run(), wanting)]


async def want_planned(fleet: ProviderFleet, shell: Shell) -> None:
    """Run the workers that the capacity model wants: pass it the offers, and pass its choice to the fleet."""
    manager = fleet.manager
    wanted = WantedWorkers(worker.worker_id for worker in manager.workers())
    shell.on_want = wanted.take
    no_peers = NoPeersTimer(shell)
    while True:
        if not fleet.offers_known:
            await asyncio.sleep(WANTED_EVERY_S)
            continue
        offered = wanted.update(
            manager.offers,
            begun=frozenset(worker.worker_id for worker in manager.workers()),
            failing=manager.failing(fleet.now()),
            here={peer_id: tag.worker_id for peer_id, tag in fleet.peers_here().items()},
            no_peers=no_peers.passed(fleet.now()),
        )
        if offered is not None and not shell.ended_because:
            shell.apply(offered)
        fleet.want(wanted.reasons)
        await asyncio.sleep(WANTED_EVERY_S)


class NoPeersTimer:
    """Measures how long there has been work without any peer, up to NO_PEERS_S seconds.

    After a restart, peers take a while to reconnect: the model must not buy a first worker at once.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._since: float | None = None

    def passed(self, now: float) -> bool:
        """Return whether NO_PEERS_S seconds have passed; called about once a second."""
        core = self._shell.core
        if core.has_peers or core.newest_version is None:
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= NO_PEERS_S


async def want_all(fleet: ProviderFleet) -> None:
    """Run every worker that is offered, as offers change."""
    while True:
        if fleet.offers_known:
            fleet.want(dict.fromkeys((offer.worker.worker_id for offer in fleet.manager.offers), ALL_WANTED))
        await asyncio.sleep(WANTED_EVERY_S)


async def want_applied(fleet: ProviderFleet, applied: AppliedWorkers) -> None:
    """Run the workers that operators asked for."""
    while True:
        if fleet.offers_known:
            fleet.want(applied.reasons)
        await asyncio.sleep(WANTED_EVERY_S)


def make_callbacks(
    shell: Shell, sessions: Sessions, ledger: RunStore, invite: Callable[[], Awaitable[str]]
) -> FleetCallbacks:
    """Connect a fleet to its coordinator; ``invite`` makes the invite with which one new worker joins."""

    async def new_invite() -> tuple[str, bytes]:
        text = await invite()
        return text, token_hash(Invite.decode(text).token)

    def here() -> Mapping[PeerId, int]:
        sent = shell.core.chunk_bytes_sent()
        return {channel.peer_id: sent.get(channel.peer_id, 0) for channel in sessions.of_role("peer")}

    def note(kind: str, subject: str, detail: str) -> None:
        ledger.record_event(kind, subject, detail, cause="providers")

    return FleetCallbacks(invite=new_invite, here=here, dismiss=sessions.stop, note=note, fail=shell.fail)
