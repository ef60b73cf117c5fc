"""Keep a history of the newest versions: how long each took to reach all peers, and what happened meanwhile."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from coordinator.core.broadcast.dissemination import Broadcast
from coordinator.core.decisions.state import CoreState
from coordinator.core.leases.drop_counts import TrafficTotals
from rollcast.wire.ids import Version

VERSIONS_SHOWN = 60


@dataclass(frozen=True, slots=True)
class VersionView:
    """One version. ``t_bcast_s`` is None while an active peer lacks it, or if no peer was active.

    The other two figures are counted from its announcement to the next one, and include older versions in that time.
    """

    version: int
    t_bcast_s: float | None
    bytes_saved_by_deltas: int
    reparentings: int


@dataclass(slots=True)
class _Watched:
    broadcast: Broadcast
    before: TrafficTotals
    after: TrafficTotals


class VersionHistory:
    """Attributes the growth of the run's totals, observed about once a second, to versions."""

    def __init__(self) -> None:
        self._watched: OrderedDict[Version, _Watched] = OrderedDict()

    def observe(self, state: CoreState) -> None:
        """Attribute what was added to the totals since the last call to the newest version."""
        totals = state.traffic.totals
        if self._watched:
            self._watched[next(reversed(self._watched))].after = totals
        for broadcast in state.dissemination.recent:
            if broadcast.version not in self._watched:
                self._watched[broadcast.version] = _Watched(broadcast, totals, totals)
        while len(self._watched) > VERSIONS_SHOWN:
            self._watched.popitem(last=False)

    def view(self) -> tuple[VersionView, ...]:
        """Return the newest versions, oldest first."""
        return tuple(
            VersionView(
                int(version),
                _t_bcast_s(one.broadcast),
                one.after.delta_bytes_saved - one.before.delta_bytes_saved,
                one.after.reparentings - one.before.reparentings,
            )
            for version, one in self._watched.items()
        )


def _t_bcast_s(broadcast: Broadcast) -> float | None:
    if broadcast.missing or broadcast.last_held_at is None:
        return None
    return round(broadcast.last_held_at - broadcast.announced_at, 3)
