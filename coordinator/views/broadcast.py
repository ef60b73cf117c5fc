"""Build the Broadcast page: the newest version's status, the relay tree with measured rates, and earlier versions."""

from __future__ import annotations

from dataclasses import dataclass, fields

from coordinator.core.decisions.state import CoreState
from coordinator.core.status.broadcast import BroadcastStatus, build_broadcast_status
from coordinator.core.status.turns import Turns
from coordinator.views.relay_tree import Shape, SlowestBranch, Tree, build_tree, slowest_branch
from coordinator.views.versions import VersionHistory, VersionView


@dataclass(frozen=True, slots=True)
class BroadcastView(BroadcastStatus):
    """The data of the Broadcast page: its status, relay tree, slowest branch and earlier versions."""

    tree: Tree
    history: tuple[VersionView, ...]
    slowest_branch: SlowestBranch | None
    at_unix_s: float


_STATUS_FIELDS = tuple(field.name for field in fields(BroadcastStatus))


def build_broadcast(
    state: CoreState, shape: Shape, versions: VersionHistory, *, now: float, unix_s: float
) -> Turns[BroadcastView]:
    """Return the view of the core's state, in turns. ``shape`` caches what does not change between two plans."""
    status = yield from build_broadcast_status(state, now=now)
    yield
    versions.observe(state)
    tree = yield from build_tree(state, shape, now)
    yield
    return BroadcastView(
        **{name: getattr(status, name) for name in _STATUS_FIELDS},
        tree=tree,
        history=versions.view(),
        slowest_branch=slowest_branch(state, now),
        at_unix_s=round(unix_s, 3),
    )
