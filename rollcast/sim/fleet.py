"""Assemble a whole simulated fleet: coordinator, learner, origin and peers on one virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rollcast.sim.judge.oracle import Oracle
from rollcast.sim.judge.verdicts import Violation
from rollcast.sim.kernel.event_queue import Agenda
from rollcast.sim.kernel.network import Network
from rollcast.sim.kernel.process import Process
from rollcast.sim.kernel.rng import Chance
from rollcast.sim.kernel.trace import Trace
from rollcast.sim.nodes import coordinator as coordinator_node
from rollcast.sim.nodes import learner
from rollcast.sim.nodes import origin as origin_node
from rollcast.sim.nodes.cell import CellCoordinatorNode, UplinkNode
from rollcast.sim.nodes.chunked import ChunkReceiver
from rollcast.sim.nodes.coordinator import CoordinatorNode
from rollcast.sim.nodes.fluid import FluidBroadcast, FluidReceiver
from rollcast.sim.nodes.hoarder import HoarderNode
from rollcast.sim.nodes.learner import LearnerNode
from rollcast.sim.nodes.origin import OriginNode
from rollcast.sim.nodes.peer import PeerNode
from rollcast.sim.nodes.picker import PickerNode
from rollcast.sim.nodes.relay import Relay
from rollcast.sim.nodes.relay_links import RelayHost
from rollcast.sim.operator import Operator
from rollcast.sim.settings import EngineSettings, FleetSettings
from rollcast.sim.versions import Signer
from rollcast.sim.world import Ground
from rollcast.wire.ids import PeerId

#: Gets the share of a simulation that is done.
Progress = Callable[[float], None]
_PARTS = 100  # of a simulation whose progress is shown

RESTART_S = 1.0  # seconds from the end of a process to its next start, unless a fault sets another time


class Fleet:
    """All processes of one simulated run, started, and a supervisor that restarts each one that ends.

    Args:
        seed: the seed of all randomness.
        coordinator: builds a coordinator's process, as CoordinatorNode does.
    """

    def __init__(
        self,
        settings: FleetSettings,
        seed: int,
        coordinator: Callable[..., CoordinatorNode] = CoordinatorNode,
    ) -> None:
        agenda, chance, trace = Agenda(), Chance(seed), Trace()
        network = Network(agenda, chance.of("network"), settings.weather, piece_bytes=settings.piece_bytes)
        oracle, signer = Oracle(settings, trace), Signer(seed, chunks=settings.chunks)
        self.settings = settings
        self.ground = ground = Ground(settings, agenda, chance, network, trace, oracle, signer)
        for name in (coordinator_node.NAME, coordinator_node.STANDBY_NAME, origin_node.NAME):
            network.add(name, settings.server_line)
        network.add(learner.NAME, settings.learner_line)
        self.coordinators = [coordinator(ground)]
        if settings.coordinators > 1:
            self.coordinators.append(coordinator(ground, self.coordinators[0]))
        self.origin = OriginNode(ground, self.coordinators)
        self.learner = LearnerNode(ground, self.coordinators, self.origin)
        self.fluid = FluidBroadcast(ground, self.origin)
        self._hosts: dict[str, RelayHost] = {}
        self._victim = PeerId("")  # whom all hostile peers accuse
        if settings.receiving == "chunks":
            origin, hosts = self.origin, self._hosts
            origin.relay = Relay(
                ground, origin, "origin", origin.disk, hosts, _ignore, _ignore, lambda: origin.has_session
            )
        speeds = chance.of("speeds")
        sampled = (
            EngineSettings(speeds.lognormvariate(0.0, settings.speed_sigma), settings.concurrent_rollouts)
            for _ in range(settings.peers)
        )
        engines = settings.engines or tuple(sampled)
        numbers = range(settings.peers + settings.hoarders + settings.pickers)
        self.peers = [self._new_peer(number, engines[number % len(engines)]) for number in numbers]
        self.cells = [Cell(self, number) for number in range(1, settings.cells + 1)]
        self.judges = [oracle, *(cell.ground.oracle for cell in self.cells)]
        if settings.operator_every_s:
            Operator(ground, lambda: self.coordinator)
        self.over = False  # the run has ended: the supervisor restarts no process any more
        self._down_s: dict[str, float] = {}
        for process in self.processes:
            process.on_end = self._ended
        starts = chance.of("starts")
        for process in (*self.coordinators, self.origin, self.learner):
            process.start()
        for cell in self.cells:
            cell.start()
        for peer in self.peers:
            agenda.after(starts.random() * settings.start_within_s, self._start_again, peer, 0)

    def name_of(self, number: int) -> str:
        """Return the name of peer ``number``, which is its id too."""
        return f"peer-{number}"

    @property
    def processes(self) -> list[Process]:
        """Return every process of the fleet: coordinators, origin, learner, then the peers in order."""
        of_cells = [one for cell in self.cells for one in cell.processes]
        return [*self.coordinators, self.origin, self.learner, *self.peers, *of_cells]

    @property
    def is_blamed(self) -> bool:
        """Whether a judge has found a broken rule."""
        return any(judge.violations for judge in self.judges)

    @property
    def violations(self) -> list[Violation]:
        """Return what the judge of the run has found, then what those of its cells have."""
        return [one for judge in self.judges for one in judge.violations]

    @property
    def coordinator(self) -> CoordinatorNode:
        """Return the coordinator that leads, or led last."""
        return max(self.coordinators, key=lambda one: one.epoch)

    def run(self, seconds: float, progress: Progress | None = None, done: Callable[[], bool] | None = None) -> None:
        """Advance virtual time by ``seconds``, or until ``done`` holds.

        ``progress`` gets the share of ``seconds`` done so far, a hundred times.
        """
        agenda = self.ground.agenda
        begin_s, end_s = agenda.now, agenda.now + seconds
        if progress is not None:
            for part in range(1, _PARTS):
                agenda.run(begin_s + seconds * part / _PARTS, done)
                progress(part / _PARTS)
        agenda.run(end_s, done)

    # ---------------------------------------------------------------- ends and starts

    def down(self, process: Process, seconds: float) -> None:
        """Kill a process if it is running; the supervisor starts it again ``seconds`` later."""
        self._down_s[process.name] = seconds
        process.kill()

    def preempt(self, peer: PeerNode, per_second: float, away_s: float) -> None:
        """Kill a peer at this rate from now on; each time it stays away for ``away_s``."""
        agenda, chance = self.ground.agenda, self.ground.chance.of(f"preemptions of {peer.name}")

        def take() -> None:
            self.down(peer, away_s)
            agenda.after(away_s + chance.expovariate(per_second), take)

        agenda.after(chance.expovariate(per_second), take)

    def start_all(self) -> None:
        """Start every process that is down."""
        for process in self.processes:
            if not process.running:
                process.start()

    def _ended(self, process: Process) -> None:
        """Schedule the next start of a process that ended for whatever reason, as systemd would."""
        seconds = self._down_s.pop(process.name, RESTART_S)
        self.ground.trace.add(self.ground.agenda.now, "down", process.name)
        self.ground.agenda.after(seconds, self._start_again, process, process.life)

    def _start_again(self, process: Process, life: int) -> None:
        if not self.over and not process.running and process.life == life:
            process.start()

    # ---------------------------------------------------------------- bad peers

    def corrupt(self, number: int, share: float) -> None:
        """Make a peer relay wrong bytes from now on, in this share of its chunks.

        Every second such peer states in its receipts what it sent, as a machine with bad memory does; others deny it.
        """
        peer = self.peers[number]
        if isinstance(peer.receiver, ChunkReceiver) and self._may_lie(peer.name):
            self.ground.oracle.ledger.liars.add(peer.name)
            peer.receiver.relay.lies = share
            if number % 2:
                peer.receiver.relay.receipt = b"a receipt"

    def turn_hostile(self, number: int) -> None:
        """Make a peer upload invalid rollouts and accuse others from now on, mostly the victim of all such peers."""
        peer = self.peers[number]
        if self._may_lie(peer.name):
            self.ground.oracle.ledger.liars.add(peer.name)
            self._victim = self._victim or PeerId(self.name_of((number + 1) % len(self.peers)))
            peer.hostile, peer.victim = True, self._victim

    def _may_lie(self, name: str) -> bool:
        liars = self.ground.oracle.ledger.liars
        return name in liars or len(liars) + 1 <= self.settings.liars_share_max * len(self.peers)

    def _new_peer(self, number: int, engine: EngineSettings) -> PeerNode:
        name, line = self.name_of(number), self.settings.lines[number % len(self.settings.lines)]
        self.ground.network.add(name, line)
        node = self._kind_of(number)(self.ground, self.coordinators, name, line, engine)
        if self.settings.receiving == "chunks":
            node.receiver = ChunkReceiver(node, self._hosts)
        else:
            node.receiver = FluidReceiver(self.fluid, node)
        return node

    def _kind_of(self, number: int) -> type[PeerNode]:
        """Return the kind of peer ``number``: honest peers come first, then hoarders, then pickers."""
        settings = self.settings
        if number < settings.peers:
            return PeerNode
        if number < settings.peers + settings.hoarders:
            return HoarderNode
        self.ground.oracle.ledger.liars.add(self.name_of(number))
        return PickerNode


class Cell:
    """The processes of one cell, with a judge of its own; they are judged by the same rules as a run."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        settings, head = fleet.settings, fleet.ground
        name = f"cell-{number}"
        self.ground = ground = replace(head, oracle=Oracle(settings, head.trace))
        head.oracle.ledger.cells.add(name)
        ground.oracle.ledger.head = head.oracle.ledger
        self.coordinator = CellCoordinatorNode(ground, f"{name}-coordinator")
        self.uplink = UplinkNode(head, fleet.coordinators, self.coordinator, name, settings.server_line)
        self.uplink.receiver = FluidReceiver(fleet.fluid, self.uplink)
        head.network.add(name, settings.server_line)
        head.network.add(self.coordinator.name, settings.server_line)
        broadcast = FluidBroadcast(ground, self.uplink)
        self.peers = [self._new_peer(broadcast, f"{name}-peer-{one}", one) for one in range(settings.cell_peers)]

    @property
    def processes(self) -> list[Process]:
        """Return the cell's coordinator, its uplink, then its workers."""
        return [self.coordinator, self.uplink, *self.peers]

    def start(self) -> None:
        """Start every process of the cell."""
        for process in self.processes:
            process.start()

    def _new_peer(self, broadcast: FluidBroadcast, name: str, number: int) -> PeerNode:
        settings = self.ground.settings
        line = settings.lines[number % len(settings.lines)]
        self.ground.network.add(name, line)
        node = PeerNode(self.ground, [self.coordinator], name, line, EngineSettings(1.0, settings.concurrent_rollouts))
        node.receiver = FluidReceiver(broadcast, node)
        return node


def _ignore(_: object) -> None:
    """Discard a report or an accusation: the origin makes neither."""
