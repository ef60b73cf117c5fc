"""Inject faults into a simulation: sampled from the seed, begun and ended in virtual time.

Every fault ends: processes restart, links are mended, disks have free space again. Faults that still last at the end of
the schedule are ended there, so that the recovery after them can be judged (I10). What a correct run must tolerate for
ever stays: peers that relay wrong bytes or upload invalid rollouts, a learner on other hardware, a wall clock that
jumped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Literal

from rollcast.runtime.errors import ConfigError
from rollcast.sim.fleet import Fleet
from rollcast.sim.kernel.disk import Disk
from rollcast.sim.kernel.process import Process
from rollcast.sim.nodes.peer import PeerNode


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault: its description, its relative frequency and the function that injects it.

    ``needs``: the processes that a fleet must have for it.
    """

    text: str
    weight: float
    happen: Callable[[Faults], None]
    needs: Literal["", "peers", "cells"] = ""

    def is_possible(self, fleet: Fleet) -> bool:
        """Return whether the fleet has the processes that it needs."""
        return {"": True, "peers": bool(fleet.peers), "cells": bool(fleet.cells)}[self.needs]


class Faults:
    """The faults of one simulation.

    Args:
        names: the kinds to inject; empty means all kinds that the fleet has processes for.

    Raises:
        ConfigError: a name is no kind of fault, or of one that this fleet has no process for.
    """

    def __init__(self, fleet: Fleet, names: Sequence[str] = ()) -> None:
        unknown = [name for name in names if name not in KINDS]
        if unknown:
            raise ConfigError(f"no fault is called {unknown[0]}", fix=f"choose among {', '.join(KINDS)}")
        possible = {name: kind for name, kind in KINDS.items() if kind.is_possible(fleet)}
        missing = [name for name in names if name not in possible]
        if missing:
            what = f"the fault {missing[0]} needs {KINDS[missing[0]].needs}, and this fleet has none"
            raise ConfigError(what, fix="leave it out, or add cells with --cells")
        self.fleet = fleet
        self.random: Random = fleet.ground.chance.of("faults")
        self.happened: list[str] = []
        self.ended_s = 0.0
        self._kinds = {name: possible[name] for name in names or possible}
        self._endings: dict[int, Callable[[], None]] = {}
        self._count = 0

    def schedule(self, begin_s: float, end_s: float, mean_gap_s: float) -> None:
        """Schedule faults between two moments, exponentially spaced; all of them end at ``end_s``."""
        agenda, at_s = self.fleet.ground.agenda, begin_s
        while (at_s := at_s + self.random.expovariate(1.0 / mean_gap_s)) < end_s:
            name = self.random.choices(list(self._kinds), [kind.weight for kind in self._kinds.values()])[0]
            agenda.after(at_s - agenda.now, self._happen, name)
        agenda.after(end_s - agenda.now, self.end_all)

    def end_all(self) -> None:
        """End every fault that still lasts and start every process that is down."""
        for number in list(self._endings):
            self._end(number)
        self.fleet.start_all()
        self.ended_s = self.fleet.ground.agenda.now

    def lasting(self, seconds: float, end: Callable[[], None]) -> None:
        """Call ``end`` after ``seconds``, or when the schedule ends if that is earlier."""
        self._count += 1
        self._endings[self._count] = end
        self.fleet.ground.agenda.after(seconds, self._end, self._count)

    def _end(self, number: int) -> None:
        end = self._endings.pop(number, None)
        if end is not None:
            end()

    def _happen(self, name: str) -> None:
        self.happened.append(name)
        self.fleet.ground.trace.add(self.fleet.ground.agenda.now, "fault", name)
        self._kinds[name].happen(self)

    # ---------------------------------------------------------------- building blocks of the kinds

    def peer(self) -> int:
        """Return the number of a random peer."""
        return self.random.randrange(len(self.fleet.peers))

    def seconds(self, least: float, most: float) -> float:
        """Return a random duration between the two, in seconds."""
        return self.random.uniform(least, most)

    def down(self, process: Process, seconds: float, disk: Disk | None = None) -> None:
        """Kill a process and restart it after ``seconds``; with ``disk``, its machine loses power as well."""
        self.fleet.down(process, seconds)
        if disk is not None:
            disk.lose_power()

    def freeze(self, process: Process, seconds: float) -> None:
        """Stop a process with SIGSTOP and continue it after ``seconds``."""
        process.freeze()
        self.lasting(seconds, process.thaw)

    def cut(self, source: str, target: str, seconds: float) -> None:
        """Drop all traffic from ``source`` to ``target`` for ``seconds``; an empty name means every process."""
        network = self.fleet.ground.network
        network.cut(source, target)
        self.lasting(seconds, partial(network.mend, source, target))


def _kill_peer(faults: Faults) -> None:
    faults.down(faults.fleet.peers[faults.peer()], faults.seconds(0.2, 8.0))


def _power_peer(faults: Faults) -> None:
    peer = faults.fleet.peers[faults.peer()]
    faults.down(peer, faults.seconds(1.0, 8.0), peer.disk)


def _kill_cell(faults: Faults) -> None:
    """Kill one process of a cell, or its whole site."""
    cell = faults.random.choice(faults.fleet.cells)
    killed = cell.processes if faults.random.random() < 0.25 else [faults.random.choice(cell.processes)]
    for process in killed:
        faults.down(process, faults.seconds(0.5, 8.0))


def _cut_cell(faults: Faults) -> None:
    cell, head, seconds = faults.random.choice(faults.fleet.cells), faults.fleet.coordinator, faults.seconds(1.0, 15.0)
    faults.cut(cell.uplink.name, head.name, seconds)
    faults.cut(head.name, cell.uplink.name, seconds)


def _drain_peer(faults: Faults) -> None:
    faults.fleet.peers[faults.peer()].stop("SIGTERM")


def _kill_coordinator(faults: Faults) -> None:
    faults.down(faults.fleet.coordinator, faults.seconds(0.1, 4.0))


def _power_coordinator(faults: Faults) -> None:
    coordinator = faults.fleet.coordinator
    faults.down(coordinator, faults.seconds(1.0, 4.0), coordinator.disk)


def _kill_learner(faults: Faults) -> None:
    faults.down(faults.fleet.learner, faults.seconds(0.1, 4.0))


def _power_learner(faults: Faults) -> None:
    faults.down(faults.fleet.learner, faults.seconds(0.5, 4.0), faults.fleet.learner.disk)


def _move_learner(faults: Faults) -> None:
    learner = faults.fleet.learner
    learner.hardware += 1
    faults.down(learner, faults.seconds(0.5, 4.0))


def _kill_origin(faults: Faults) -> None:
    faults.down(faults.fleet.origin, faults.seconds(0.1, 3.0))


def _power_origin(faults: Faults) -> None:
    faults.down(faults.fleet.origin, faults.seconds(0.5, 3.0), faults.fleet.origin.disk)


def _partition(faults: Faults) -> None:
    seconds, coordinator = faults.seconds(1.0, 15.0), faults.fleet.coordinator.name
    for peer in faults.fleet.peers:
        if faults.random.random() < 0.5:
            faults.cut(peer.name, coordinator, seconds)
            faults.cut(coordinator, peer.name, seconds)


def _one_way(faults: Faults) -> None:
    peer, coordinator = faults.fleet.peers[faults.peer()].name, faults.fleet.coordinator.name
    pair = (peer, coordinator) if faults.random.random() < 0.5 else (coordinator, peer)
    faults.cut(*pair, faults.seconds(1.0, 15.0))


def _alone(faults: Faults) -> None:
    peer, seconds = faults.fleet.peers[faults.peer()].name, faults.seconds(1.0, 15.0)
    faults.cut(peer, "", seconds)
    faults.cut("", peer, seconds)


def _learner_cut(faults: Faults) -> None:
    learner = faults.fleet.learner.name
    other = faults.random.choice([faults.fleet.coordinator.name, faults.fleet.origin.name])
    pair = (learner, other) if faults.random.random() < 0.5 else (other, learner)
    faults.cut(*pair, faults.seconds(1.0, 12.0))


def _freeze(faults: Faults) -> None:
    fleet = faults.fleet
    process: Process = faults.random.choice(
        [fleet.coordinator, fleet.learner, fleet.origin, fleet.peers[faults.peer()], fleet.peers[faults.peer()]]
    )
    if process.running and not process.frozen:
        faults.freeze(process, faults.seconds(0.5, 8.0))


def _some_disk(faults: Faults) -> Disk:
    fleet = faults.fleet
    disks = [fleet.coordinator.disk, fleet.learner.disk, fleet.origin.disk, fleet.peers[faults.peer()].disk]
    return faults.random.choice(disks)


def _slow_disk(faults: Faults) -> None:
    state = _some_disk(faults).state
    state.slow_s = faults.seconds(0.05, 1.0)
    faults.lasting(faults.seconds(2.0, 15.0), partial(setattr, state, "slow_s", 0.0))


def _full_disk(faults: Faults) -> None:
    state = _some_disk(faults).state
    state.full = True
    faults.lasting(faults.seconds(1.0, 8.0), partial(setattr, state, "full", False))


def _herd(faults: Faults) -> None:
    for peer in faults.fleet.peers:
        faults.down(peer, faults.seconds(0.1, 1.0))


def _repeats(faults: Faults) -> None:
    peer = faults.fleet.peers[faults.peer()]
    peer.repeats_uploads = 0.5
    faults.lasting(faults.seconds(5.0, 20.0), partial(setattr, peer, "repeats_uploads", 0.0))


def _bad_weather(faults: Faults) -> None:
    network = faults.fleet.ground.network
    before = network.weather
    bad = replace(before, loss=faults.seconds(0.02, 0.3), jitter_s=faults.seconds(0.05, 0.6))
    if before.loss == 0.0:
        network.weather = bad
        faults.lasting(faults.seconds(2.0, 15.0), partial(setattr, network, "weather", before))


def _slow_peer(faults: Faults) -> None:
    peer = faults.fleet.peers[faults.peer()]
    peer.slow_down(faults.seconds(2.0, 8.0))
    faults.lasting(faults.seconds(5.0, 20.0), partial(peer.slow_down, 1.0))


def _hung_engine(faults: Faults) -> None:
    """Hang a peer's engine until the process restarts, which happens after the peer's leases have expired."""
    peer = faults.fleet.peers[faults.peer()]
    hung_s = faults.fleet.settings.lease_deadline_s * faults.seconds(1.1, 2.5)
    if peer.running and not peer.hung:
        peer.hung = True
        faults.lasting(hung_s, partial(_restart_hung, peer, peer.life))


def _restart_hung(peer: PeerNode, life: int) -> None:
    if peer.life == life:
        peer.kill()


def _corrupt_relay(faults: Faults) -> None:
    faults.fleet.corrupt(faults.peer(), faults.seconds(0.1, 1.0))


def _hostile_peer(faults: Faults) -> None:
    faults.fleet.turn_hostile(faults.peer())


def _verifiers_fail(faults: Faults) -> None:
    verifiers = faults.fleet.coordinator.verifiers
    verifiers.failures = faults.random.choice([0.5, 1.0])
    faults.lasting(faults.seconds(3.0, 15.0), partial(setattr, verifiers, "failures", 0.0))


def _clock_jump(faults: Faults) -> None:
    faults.fleet.coordinator.wall_offset_s += faults.seconds(-3600.0, 3600.0)


#: Every kind of fault by its name on the command line.
KINDS: dict[str, Fault] = {
    "kill-peer": Fault("a peer is killed and restarts", 3.0, _kill_peer, "peers"),
    "power-peer": Fault("a peer's machine loses power", 1.5, _power_peer, "peers"),
    "drain-peer": Fault("a peer gets SIGTERM, and restarts", 1.5, _drain_peer, "peers"),
    "kill-coordinator": Fault("the coordinator is killed", 2.0, _kill_coordinator),
    "power-coordinator": Fault("the coordinator's machine loses power", 1.0, _power_coordinator),
    "kill-learner": Fault("the learner is killed at any moment", 2.0, _kill_learner),
    "power-learner": Fault("the learner's machine loses power", 1.0, _power_learner),
    "move-learner": Fault(
        "the learner continues on other hardware, where replays round differently", 0.7, _move_learner
    ),
    "kill-origin": Fault("the origin is killed", 1.0, _kill_origin),
    "power-origin": Fault("the origin's machine loses power", 0.7, _power_origin),
    "partition": Fault("half of the peers are cut off from the coordinator", 1.0, _partition),
    "one-way": Fault("messages pass between a peer and the coordinator in one direction only", 1.5, _one_way, "peers"),
    "alone": Fault("a peer is cut off from every process", 1.0, _alone, "peers"),
    "learner-cut": Fault(
        "the learner and the coordinator or the origin are cut off in one direction", 1.0, _learner_cut
    ),
    "freeze": Fault("a process is suspended (SIGSTOP)", 1.5, _freeze, "peers"),
    "slow-disk": Fault("a disk takes up to a second a sync", 1.0, _slow_disk, "peers"),
    "full-disk": Fault("a disk is full", 1.0, _full_disk, "peers"),
    "herd": Fault("all peers restart within a second", 0.5, _herd),
    "repeats": Fault("the transport delivers a peer's uploads twice", 1.0, _repeats, "peers"),
    "weather": Fault("messages are lost or delayed", 1.0, _bad_weather),
    "slow-peer": Fault("a peer generates several times slower", 1.5, _slow_peer, "peers"),
    "hung-engine": Fault(
        "a peer's engine hangs: the peer heartbeats but returns no rollout", 1.5, _hung_engine, "peers"
    ),
    "corrupt-relay": Fault("a peer relays wrong bytes", 0.7, _corrupt_relay, "peers"),
    "hostile-peer": Fault("a peer uploads invalid rollouts", 0.7, _hostile_peer, "peers"),
    "verifiers": Fault("the verifiers fail on half of the rollouts, or on all of them", 1.0, _verifiers_fail),
    "clock": Fault("the coordinator's wall clock jumps by up to an hour", 0.5, _clock_jump),
    "kill-cell": Fault("a process of a cell is killed, or all of them", 3.0, _kill_cell, "cells"),
    "cut-cell": Fault("a cell and the head are cut off from each other", 1.5, _cut_cell, "cells"),
}
