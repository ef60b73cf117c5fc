"""A whole simulated fleet: coordinator, learner, origin and peers on one virtual clock."""

from __future__ import annotations

from rollcast.sim import coordinator_node, learner_node, origin_node
from rollcast.sim.agenda import Agenda
from rollcast.sim.chance import Chance
from rollcast.sim.chunked import ChunkReceiver
from rollcast.sim.coordinator_node import CoordinatorNode
from rollcast.sim.fluid import FluidBroadcast, FluidReceiver
from rollcast.sim.ground import Ground
from rollcast.sim.learner_node import LearnerNode
from rollcast.sim.network import Network
from rollcast.sim.oracle import Oracle
from rollcast.sim.origin_node import OriginNode
from rollcast.sim.peer_node import PeerNode
from rollcast.sim.relay import Relay
from rollcast.sim.relay_links import RelayHost
from rollcast.sim.settings import FleetSettings
from rollcast.sim.trace import Trace
from rollcast.sim.versions import Signer


class Fleet:
    """Every process, started.

    Args:
        seed: of everything that is left to chance.
    """

    def __init__(self, settings: FleetSettings, seed: int) -> None:
        agenda, chance, trace = Agenda(), Chance(seed), Trace()
        network = Network(agenda, chance.of("network"), settings.weather)
        oracle, signer = Oracle(settings, trace), Signer(seed, chunks=settings.chunks)
        self.settings = settings
        self.ground = ground = Ground(settings, agenda, chance, network, trace, oracle, signer)
        for name in (coordinator_node.NAME, origin_node.NAME, learner_node.NAME):
            network.add(name, settings.server_line)
        self.coordinator = CoordinatorNode(ground)
        self.origin = OriginNode(ground, self.coordinator)
        self.learner = LearnerNode(ground, self.coordinator, self.origin)
        self._broadcast = FluidBroadcast(ground, self.origin)
        self._hosts: dict[str, RelayHost] = {}
        if settings.receiving == "chunks":
            self.origin.relay = Relay(ground, self.origin, "origin", self.origin.disk, self._hosts, _ignore, _ignore)
        speeds = chance.of("speeds")
        self.peers = [
            self._new_peer(number, speeds.lognormvariate(0.0, settings.speed_sigma)) for number in range(settings.peers)
        ]
        starts = chance.of("starts")
        for process in (self.coordinator, self.origin, self.learner):
            process.start()
        for peer in self.peers:
            agenda.after(starts.random() * settings.start_within_s, peer.start)

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        agenda = self.ground.agenda
        agenda.run(agenda.now + seconds)

    def _new_peer(self, number: int, speed: float) -> PeerNode:
        name, line = f"peer-{number}", self.settings.lines[number % len(self.settings.lines)]
        self.ground.network.add(name, line)
        node = PeerNode(self.ground, self.coordinator, name, line, speed)
        if self.settings.receiving == "chunks":
            node.receiver = ChunkReceiver(node, self._hosts)
        else:
            node.receiver = FluidReceiver(self._broadcast, node)
        return node


def _ignore(_: object) -> None:
    """The origin reports nothing of itself and accuses nobody."""
