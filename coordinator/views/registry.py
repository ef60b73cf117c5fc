"""Hold all views of one run and their state: since when alerts last, rings of samples, cached tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.core.core import CoordinatorCore
from coordinator.core.decisions.state import CoreState
from coordinator.core.status.status import RunStatus
from coordinator.core.status.turns import Turns
from coordinator.views.alerts import Alert, AlertBook, Found, Health, Lately, Seen, find_alerts
from coordinator.views.broadcast import BroadcastView, build_broadcast
from coordinator.views.capacity import CapacityView, build_capacity
from coordinator.views.event_rows import EventView
from coordinator.views.history import SAMPLE_S, History
from coordinator.views.learning_alerts import find_learning_alerts
from coordinator.views.overview import Overview, build_overview
from coordinator.views.relay_tree import Shape
from coordinator.views.samples import take_sample
from coordinator.views.versions import VersionHistory
from coordinator.views.workers import KnownMembers, WorkersView, build_workers
from rollcast.wire.ids import Epoch

LATELY_S = 600.0


@dataclass(frozen=True, slots=True)
class ViewedRun:
    """Sources of the views. ``clock`` is the core's, in seconds; ``spending`` is None without rented workers."""

    core: CoordinatorCore
    clock: Callable[[], float]
    unix_clock: Callable[[], float]
    spending: Callable[[], Mapping[str, Any] | None]
    health: Callable[[], Health]


@dataclass(frozen=True, slots=True)
class _Counts:
    at: float
    accepted: int
    ended: int
    too_old: int


@dataclass(slots=True)
class _Excused:
    """Counts rollouts that became too old because a new epoch skipped steps, which says nothing about S."""

    _epoch: Epoch | None = None
    _step: int = 0  # the newest when the epoch was noticed
    _is_first: bool = True  # at the sample before, no step of the epoch was done
    _count: int = 0

    def of(self, state: CoreState, too_old: int) -> int:
        """Return how many of the rollouts that were too old so far are excused."""
        if state.epochs.current != self._epoch:
            self._epoch, self._step = state.epochs.current, state.progress.step
        is_first = state.progress.step == self._step
        if is_first or self._is_first:  # the first step may have been done since the sample before
            self._count = too_old
        self._is_first = is_first
        return self._count


@dataclass(slots=True)
class ViewRegistry:
    """Builds the views of the run's present state; ``sample`` must be called every SAMPLE_S seconds."""

    run: ViewedRun
    history: History = field(default_factory=History)
    cloned: tuple[EventView, ...] = ()  # the newest events of identities with a second copy
    _alerts: AlertBook = field(default_factory=AlertBook)
    _known: KnownMembers = field(default_factory=KnownMembers)
    _shape: Shape = field(default_factory=Shape)
    _versions: VersionHistory = field(default_factory=VersionHistory)
    _excused: _Excused = field(default_factory=_Excused)
    _counts: deque[_Counts] = field(default_factory=lambda: deque(maxlen=round(LATELY_S / SAMPLE_S)))

    def overview(self) -> Overview:
        """Return the Overview."""
        run, status, spending = self.run, self._status(), self.run.spending()
        return build_overview(
            run.core.state,
            status,
            self._wrong(status, spending),
            spending,
            accepted_per_s=self._accepted_per_s(),
            unix_s=run.unix_clock(),
        )

    def workers(self) -> Turns[WorkersView]:
        """Return the table of all members, in turns."""
        run = self.run
        return build_workers(run.core.state, self._known, now=run.clock(), unix_s=run.unix_clock())

    def broadcast(self) -> Turns[BroadcastView]:
        """Return the Broadcast page's view, in turns."""
        run = self.run
        return build_broadcast(run.core.state, self._shape, self._versions, now=run.clock(), unix_s=run.unix_clock())

    def capacity(self, decisions: tuple[EventView, ...]) -> Turns[CapacityView]:
        """Return the Capacity page's view, in turns."""
        run = self.run
        activation = run.core.activation_status()
        return build_capacity(
            run.core.state,
            activation,
            self._known,
            run.spending(),
            decisions,
            now=run.clock(),
            unix_s=run.unix_clock(),
        )

    def sample(self) -> Turns[None]:
        """Take a sample for the charts and update the alerts, in turns, also while no page is open."""
        run, status, spending = self.run, self._status(), self.run.spending()
        yield
        state, now = run.core.state, run.clock()
        accounts = state.accounts
        dropped, too_old = accounts.dropped.total(), accounts.dropped["stale"] + accounts.dropped["group_stale"]
        excused = self._excused.of(state, too_old)
        self._counts.append(_Counts(now, accounts.accepted, accounts.trained + dropped - excused, too_old - excused))
        self._versions.observe(state)
        self._wrong(status, spending)
        yield
        sample = yield from take_sample(state, status, spending, now=now)
        self.history.add(run.unix_clock(), sample)

    def _status(self) -> RunStatus:
        return self.run.core.run_status(self.run.clock())

    def _wrong(self, status: RunStatus, spending: Mapping[str, Any] | None) -> tuple[Alert, ...]:
        run, now = self.run, self.run.clock()
        since_unix_s = run.unix_clock() - LATELY_S
        cloned = tuple(one for one in self.cloned if one.at_unix_s >= since_unix_s)
        seen = Seen(run.core.state, status, self._lately(), run.health(), spending, now, run.core.up_s(now), cloned)
        return self._alerts.update([*find_alerts(seen), *self._learning()], now)

    def _learning(self) -> Iterator[Found]:
        state = self.run.core.state
        if state.ended:
            return iter(())
        rate = state.progress.values.get("learning_rate")
        return find_learning_alerts(tuple(state.progress.signals), rate, state.settings.sampling.max_new_tokens)

    def _lately(self) -> Lately:
        if len(self._counts) < 2:
            return Lately()
        first, last = self._counts[0], self._counts[-1]
        return Lately(last.ended - first.ended, last.too_old - first.too_old)

    def _accepted_per_s(self) -> float | None:
        if len(self._counts) < 2:
            return None
        first, last = self._counts[0], self._counts[-1]
        return (last.accepted - first.accepted) / max(last.at - first.at, 1e-9)
