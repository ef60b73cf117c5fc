"""Simulate the origin's process: it stores a version durably before it acknowledges the learner's push."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.core.events import events as ev
from coordinator.core.events.events import PeerFacts
from rollcast.sim.kernel.disk import Disk, DiskFull
from rollcast.sim.kernel.process import Script
from rollcast.sim.kernel.rpc import Reply, Server
from rollcast.sim.nodes.control_link import Addresses, ControlLink
from rollcast.sim.nodes.coordinator import CoordinatorNode
from rollcast.sim.nodes.relay import Relay
from rollcast.sim.nodes.relay_disk import Kept, RelayDisk
from rollcast.sim.versions import Published
from rollcast.sim.world import Ground
from rollcast.wire.ids import PeerId

NAME = "origin"
VERSIONS_KEPT = 8
DISK_RETRY_S = 2.0  # seconds between two attempts to store a version on a full disk


class OriginNode(Server):
    """The origin's process and its machine. The disk outlives the process."""

    def __init__(self, ground: Ground, coordinators: Sequence[CoordinatorNode]) -> None:
        super().__init__(NAME, ground.network)
        self.ground = ground
        self._addresses = Addresses(coordinators)
        self.disk = Disk(ground.chance.of("disk of the origin"))
        self.disk.state.sync_s = ground.settings.sync_s
        self.versions = RelayDisk(self.disk)
        self.relay: Relay | None = None
        self.link: ControlLink | None = None

    def _begin(self) -> None:
        if self.relay is not None:
            self.relay.begin()
        self.later(self.ground.settings.boot_s, self._connect)

    def _killed(self) -> None:
        super()._killed()
        if self.relay is not None:
            self.relay.killed()
        if self.link is not None:
            self.link.close("the connection was closed")
            self.link = None

    def _connect(self) -> None:
        joined = ev.PeerJoined(PeerId(NAME), "origin", NAME, f"{NAME}:1", 0, "simulated")
        random = self.ground.chance.of("origin")
        callbacks = (self._received, lambda _: None, lambda _: None)
        self.link = ControlLink(self.ground, self, self._addresses, lambda: joined, self._heartbeat, *callbacks, random)
        self.link.dial()

    def _received(self, kind: str, content: Any) -> None:
        if self.relay is None:
            return
        if kind == "announcement" and not self.relay.handle_announcement(content, announced=True):
            self.ground.oracle.failed(f"the origin knows another version {content.version}", self.agenda.now)
        elif kind == "plan":
            self.relay.planned(content)

    def _heartbeat(self) -> ev.HeartbeatReceived:
        facts = PeerFacts("idle", "", None, 0, 0, 0, 0, 0, None, 0, 0, 0.0)
        return ev.HeartbeatReceived(PeerId(NAME), facts)

    @property
    def has_session(self) -> bool:
        """Whether the session with the coordinator is open."""
        return self.link is not None and self.link.open

    def push(self, published: Published, reply: Reply) -> None:
        """Receive a version from the learner; the call is answered once the version is durable."""
        self.follow(self._store(published, reply))

    def _store(self, published: Published, reply: Reply) -> Script:
        version = published.verified.version
        while True:
            try:
                self.versions.put(Kept.of(published))
                break
            except DiskFull:
                yield self.sleep(DISK_RETRY_S)
        yield self.sleep(self.disk.sync_s())
        self.versions.sync(version)
        if self.relay is not None and not self.relay.pushed(published):
            self.ground.oracle.failed(f"the origin receives another version {version}", self.agenda.now)
        if self.relay is not None:
            self.relay.prune(VERSIONS_KEPT)
        else:
            for old in self.versions.surplus(VERSIONS_KEPT):
                self.versions.discard(old)
        self.closed(reply)
        reply.send(True)

    def holds(self, version: int) -> bool:
        """Return whether a version is complete on disk and would survive a power loss; for the judge."""
        kept = self.versions.durable(version)
        return kept is not None and kept.whole
