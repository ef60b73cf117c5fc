"""Define what all simulated processes share: time, randomness, network, the trace of events and the judge."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.sim.judge.oracle import Oracle
from rollcast.sim.kernel.event_queue import Agenda
from rollcast.sim.kernel.network import Network
from rollcast.sim.kernel.rng import Chance
from rollcast.sim.kernel.trace import Trace
from rollcast.sim.settings import FleetSettings
from rollcast.sim.versions import Signer


@dataclass(frozen=True, slots=True)
class Ground:
    """The shared parts of one simulated world."""

    settings: FleetSettings
    agenda: Agenda
    chance: Chance
    network: Network
    trace: Trace
    oracle: Oracle
    signer: Signer
