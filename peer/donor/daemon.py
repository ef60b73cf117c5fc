"""The owner's side of a peer process: enforce limits, answer commands, keep receipts and report."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import psutil
import structlog

from peer.config import LinkConfig
from peer.donor.control.commands import LimitsCommand
from peer.donor.control.control import Command, Control, seconds_of
from peer.donor.control.limits import OwnerLimitsBook
from peer.donor.control.saved_state import SavedState
from peer.donor.enforce import LimitsEnforcer
from peer.donor.install.join import PeerPaths
from peer.donor.install.leave import clear_up
from peer.donor.machine.gpu_sensors import GpuSensors
from peer.donor.machine.sensors import Sensors
from peer.donor.page.page import OwnersPage, identity_report
from peer.donor.receipts import ACCEPTED, Receipt, Receipts
from peer.donor.report import NewerRelease, machine_report, newer_release
from peer.limits.decide import Allowed, LimitsCore, Wish
from peer.links.gate import NetworkGate
from peer.worker.core.events import FinishRequested, Rest, RestingState, Verdict
from peer.worker.core.spool import BUSY
from rollcast import __version__
from rollcast.wire.rollouts import Rollout

log = structlog.get_logger()

RECEIPTS_FOLDER = "receipts"
_SAVE_RECEIPTS_S = 60.0
_NICENESS = 19  # the lowest priority


class DonorHost(Protocol):
    """The operations that a peer process carries out for its owner."""

    def rest(self, event: Rest) -> None:
        """Stop generating rollouts, or resume."""

    def finish(self, event: FinishRequested) -> None:
        """Accept no new work, and end the process if the event's ``ends`` is set."""

    def allow_network(self, gate: NetworkGate) -> None:
        """Send and receive chunks only as far as the gate allows."""

    def cap_links(self, link: LinkConfig) -> None:
        """Apply these bandwidth caps to chunk links."""

    @property
    def moved_far_bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far beyond the local network."""

    @property
    def holds_work(self) -> bool:
        """Whether leases or finished rollouts are held."""

    def describe(self) -> dict[str, Any]:
        """Return the part of the report that describes the process itself (peer.donor.report)."""


class Donor:
    """The owner's side of one peer process.

    Args:
        limits: the owner's limits, and the configuration that they are part of.
        host: the peer process.
        instance_id: id of this copy of the identity (peer.instance).
        local_now: returns the owner's wall clock, naive; schedules, quotas, receipts and file names follow it.
        unix_now: returns seconds since 1970.
    """

    def __init__(
        self,
        limits: OwnerLimitsBook,
        host: DonorHost,
        instance_id: str = "",
        *,
        local_now: Callable[[], datetime] = datetime.now,
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        config = limits.config
        self._instance_id = instance_id
        self._limits = limits
        self._folder = config.state_folder
        self._host = host
        self._local_now = local_now
        self._memory = SavedState(config.state_folder)
        rules = config.limits.rules()
        self._enforcer = LimitsEnforcer(
            LimitsCore(rules, config.limits.quota(self._memory.use), self._memory.asked),
            Sensors(config.state_folder, GpuSensors.here(), wants_idle=rules.ceilings.idle_s_min is not None),
            self._memory,
            moved=lambda: host.moved_far_bytes,
            apply=self._apply,
            finish=self._finish,
            holds_work=lambda: host.holds_work,
            local_now=local_now,
        )
        self.receipts = Receipts(config.state_folder / RECEIPTS_FOLDER)
        self._resting = self._finishing = False
        self._leaves = False
        self._newer: NewerRelease | None = None
        self._commands: dict[str, Command] = {
            "status": lambda _: self.report(),
            "pause": lambda values: self._ask("pause", seconds_of(values)),
            "resume": lambda _: self._ask("run", None),
            "finish": lambda values: self._ask("finish", seconds_of(values)),
            "leave": lambda _: self._leave(),
            "limits": LimitsCommand(limits, self._limits_changed),
        }
        self._page: OwnersPage | None = None
        if config.page and config.role == "peer":
            self._page = page = OwnersPage(
                limits,
                report=self.report,
                commands=self._commands,
                identity=self._identity,
                local_now=local_now,
                unix_now=unix_now,
            )
            self._commands["page"] = lambda _: {"url": page.server.url}

    async def run(self) -> None:
        """Enforce limits and answer commands until cancelled.

        Raises:
            RollcastError: the command socket cannot be created, or the page's port and token cannot be saved.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self.receipts.save)
            await stack.enter_async_context(Control(self._commands).serving(self._folder))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._enforcer.run())
                tasks.create_task(self._save_receipts())
                if self._page is not None:
                    tasks.create_task(self._page.run())

    def clear_up(self) -> None:
        """Remove the files of the ended process if the owner took this machine out of the run.

        Raises:
            RunFolderError: a file cannot be removed.
        """
        if self._leaves:
            gone = clear_up(PeerPaths(Path(), self._folder), forget_identity=False)
            log.info("this machine has left; its identity, receipts, limits and traffic stay", removed=len(gone))

    async def _save_receipts(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_RECEIPTS_S)
            self.receipts.save()

    def judged(self, rollouts: Iterable[Rollout], verdicts: Iterable[Verdict]) -> None:
        """Write receipts for the coordinator's verdicts on uploaded rollouts.

        "busy" is no final verdict: the rollout is uploaded again, and gets its receipt then.
        """
        local = self._local_now()
        by_key = {(rollout.lease_id, rollout.sample_index): rollout for rollout in rollouts}
        receipts = [
            _receipt(by_key[key], verdict, local)
            for verdict in verdicts
            if verdict.reason != BUSY and (key := (verdict.lease_id, verdict.sample_index)) in by_key
        ]
        self.receipts.add(receipts, local)

    def coordinator_runs(self, software: str) -> None:
        """Compare the coordinator's release with this one, and report a newer one to the owner."""
        self._newer = newer_release(f"rollcast {__version__}", software)
        if self._newer is not None:
            log.info("a newer release is available", ours=self._newer.ours, theirs=self._newer.theirs)

    def report(self) -> dict[str, Any]:
        """Return the report for the owner's screens (peer.donor.report)."""
        newer = None if self._newer is None else self._newer.to_json()
        process, config = self._host.describe(), self._limits.config
        report = machine_report(process, self._enforcer, self._memory, self.receipts, config, self._local_now())
        return {**report, "newer_release": newer}

    # ------------------------------------------------------------ requests of the owner

    def _ask(self, wish: Wish, for_s: float | None) -> dict[str, Any]:
        self._leaves = self._leaves and wish == "finish"
        allowed = self._enforcer.ask(wish, for_s)
        return {"state": allowed.state, "reason": allowed.reason}

    def _leave(self) -> dict[str, Any]:
        """Finish the work that is held, end the process, and remove its files.

        Identity, receipts, limits and the month's traffic stay.
        """
        self._leaves = True
        return self._ask("finish", None)

    def _identity(self) -> dict[str, Any]:
        return identity_report(self._folder, self._host.describe(), self._instance_id, self._limits.config.public_name)

    def _limits_changed(self) -> None:
        config = self._limits.config
        self._host.cap_links(config.link)
        self._enforcer.change(config.limits.rules(), config.limits.quota(self._enforcer.used))

    def _finish(self, until: datetime | None) -> None:
        self._finishing = True
        reason = "its owner asked it to finish" + ("" if until is None else f", back {until:%a %H:%M}")
        self._host.finish(FinishRequested(reason, ends=until is None))

    def _apply(self, allowed: Allowed) -> None:
        self._host.allow_network(NetworkGate(allowed.send, allowed.receive, allowed.reason))
        state: RestingState = "paused" if allowed.state == "paused" else "resting"
        if not allowed.compute or self._resting:
            self._host.rest(Rest("" if allowed.compute else allowed.reason, state))
        self._resting = not allowed.compute
        if self._finishing and allowed.state != "finishing":
            self._finishing = False
            self._host.finish(FinishRequested(""))


def be_polite() -> None:
    """Give this process, and every thread that it starts from now on, the lowest priority on processor and disk."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    except (OSError, AttributeError, psutil.Error) as error:
        log.warning("this process keeps its priority", cause=str(error))


def _receipt(rollout: Rollout, verdict: Verdict, local: datetime) -> Receipt:
    if rollout.finish_reason == "interrupted":
        outcome = "interrupted"
    else:
        outcome = ACCEPTED if verdict.accepted else verdict.reason
    return Receipt(
        at=local.isoformat(timespec="seconds"),
        lease_id=rollout.lease_id,
        sample_index=rollout.sample_index,
        version=max((segment.version for segment in rollout.segments), default=-1),
        tokens=sum(segment.token_count for segment in rollout.segments),
        verdict=outcome,
    )
