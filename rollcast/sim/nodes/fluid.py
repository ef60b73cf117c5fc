"""Simulate broadcasts of large fleets without chunks: each peer has its copy at the time of the fluid bound.

The bound, and the factor by which eight stripes miss it, are the planner's (capacity/model/broadcast_bound.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from capacity.model.broadcast_bound import common_seconds, stripe_factor
from capacity.model.topologies import Topology
from rollcast.sim.kernel.disk import Disk
from rollcast.sim.kernel.event_queue import Agenda
from rollcast.sim.kernel.network import Line
from rollcast.sim.kernel.process import Process
from rollcast.sim.world import Ground
from rollcast.wire.ids import Version
from rollcast.wire.versions.records import VerifiedVersion

_STRIPES_LOSE = stripe_factor(Topology("stripes", 8))  # factor over the fluid bound


class ReceivingNode(Protocol):
    """A process that receives versions: a peer's, or a cell's uplink."""

    name: str
    line: Line
    disk: Disk
    agenda: Agenda
    ground: Ground

    def later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None: ...

    def verified(self, verified: VerifiedVersion) -> None: ...


class FluidBroadcast:
    """The broadcast time that the access links of all running peers allow together."""

    def __init__(self, ground: Ground, origin: Process) -> None:
        self.ground = ground
        self.origin = origin
        self._peers = 0
        self._up_bytes_s = 0.0
        self._peer_s, self._counted_s = 0.0, 0.0

    @property
    def peer_s(self) -> float:
        """The seconds that peers ran, all together."""
        return self._peer_s + self._peers * (self.ground.agenda.now - self._counted_s)

    @property
    def origin_copies(self) -> float:
        """Copies of a version that the origin sends when all access links are used to the full.

        It sends one copy at least, and what the peers' uplinks together cannot.
        """
        up = self.ground.settings.server_line.up_bytes_s
        return max(1.0, self._peers * up / (up + self._up_bytes_s))

    def _count(self) -> None:
        self._peer_s, self._counted_s = self.peer_s, self.ground.agenda.now

    def joined(self, node: ReceivingNode) -> None:
        """Count a peer that receives and relays from now on."""
        self._count()
        self._peers += 1
        self._up_bytes_s += node.line.up_bytes_s * node.line.relays

    def left(self, node: ReceivingNode) -> None:
        """Remove a peer from the count."""
        self._count()
        self._peers -= 1
        self._up_bytes_s -= node.line.up_bytes_s * node.line.relays

    def seconds(self, node: ReceivingNode) -> float:
        """Return the seconds from a version's announcement to this peer's copy."""
        size, up = self.ground.settings.version_bytes, self.ground.settings.server_line.up_bytes_s
        together = common_seconds(size, up, self._up_bytes_s, self._peers)
        return _STRIPES_LOSE * max(together, size / node.line.down_bytes_s)


class FluidReceiver:
    """One peer's copies of versions, and the progress of the version that is being received."""

    def __init__(self, broadcast: FluidBroadcast, node: ReceivingNode) -> None:
        self._broadcast = broadcast
        self._node = node
        self._receiving: VerifiedVersion | None = None
        self._next: VerifiedVersion | None = None  # newest version announced meanwhile
        # Whether the version being received has replaced another one: then it is not replaced in turn, as in
        # peer/relay/version_book.py; else frequent announcements could keep a slow peer from ever completing one.
        self._keeps = False
        self._from_s = self._until_s = self._received_s = 0.0

    def begin(self) -> None:
        self._receiving, self._next, self._keeps, self._received_s = None, None, False, 0.0
        self._broadcast.joined(self._node)

    def killed(self) -> None:
        self._broadcast.left(self._node)
        if self._receiving is not None:
            self._keep_part(self._receiving.version)

    def announced(self, verified: VerifiedVersion) -> None:
        if self.loadable(verified.version):
            self._node.verified(verified)
            return
        held = self._node.disk.names("version-")
        if held and held[-1] > f"version-{verified.version:09d}":
            return
        under_way = self._receiving
        if under_way is not None and under_way.version >= verified.version:
            return
        now = self._node.agenda.now
        if under_way is not None:
            most_is_here = 2.0 * (self._until_s - now) < self._until_s - self._from_s
            if most_is_here or self._keeps:
                self._next = verified
                return
            self._keeps = True
            self._keep_part(under_way.version)
            self._received_s += now - self._from_s
        seconds = self._broadcast.seconds(self._node) * (1.0 - self._part_of(verified.version))
        self._receiving, self._from_s, self._until_s = verified, now, now + seconds
        self._node.later(seconds, self._received, verified)

    def planned(self, plan: Any) -> None:
        pass

    def loadable(self, version: Version) -> bool:
        return self._node.disk.read(f"version-{version:09d}") is not None

    def as_signed(self, version: Version) -> bool:
        return True  # there are no bytes

    def complete(self, version: Version) -> bool:
        return self.loadable(version)

    def received_s(self, now: float) -> float:
        return self._received_s + (0.0 if self._receiving is None else now - self._from_s)

    def facts(self) -> dict[str, Any]:
        return {}

    def _received(self, verified: VerifiedVersion) -> None:
        if self._receiving is not verified:
            return
        node, origin = self._node, self._broadcast.origin
        if not origin.running or not node.ground.network.reaches(origin.name, node.name):
            node.later(1.0, self._received, verified)
            return
        self._receiving, self._keeps = None, False
        self._received_s += node.agenda.now - self._from_s
        self._keep(verified)
        following, self._next = self._next, None
        if following is not None:
            self.announced(following)

    def _keep(self, verified: VerifiedVersion) -> None:
        """Store a received version, unless a newer one is stored already."""
        node = self._node
        held, name = node.disk.names("version-"), f"version-{verified.version:09d}"
        if held and held[-1] > name:
            return
        node.disk.remove(f"part-{verified.version}")
        node.disk.write(name, verified)
        node.later(node.disk.sync_s(), node.disk.sync, name)
        for old in [*held, name][: -node.ground.settings.versions_kept]:
            node.disk.remove(old)
        node.verified(verified)

    def _part_of(self, version: Version) -> float:
        return float(self._node.disk.read(f"part-{version}") or 0.0)

    def _keep_part(self, version: Version) -> None:
        done = (self._node.agenda.now - self._from_s) / max(1e-9, self._until_s - self._from_s)
        kept = self._part_of(version)
        self._node.disk.write(f"part-{version}", kept + min(1.0, done) * (1.0 - kept))
