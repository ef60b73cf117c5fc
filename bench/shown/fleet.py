"""Simulate a fleet that looks like a real one on screens: machines of several kinds, regions, links, chunk maps.

Cores and network are those of the simulator. It has no hardware, no regions, and no record of which chunks a peer holds
while a version spreads in the time of the fluid bound; those are sampled here from a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from blake3 import blake3

from capacity.replan.events import ReplanSettings
from coordinator.core.events.actions import Assignment
from coordinator.core.events.events import LinkFacts
from coordinator.core.events.prices import ActivationSettings, Price
from rollcast.sim.fleet import Fleet
from rollcast.sim.kernel.network import Line
from rollcast.sim.nodes.coordinator import CoordinatorNode
from rollcast.sim.nodes.fluid import FluidBroadcast, FluidReceiver
from rollcast.sim.nodes.peer import PeerNode
from rollcast.sim.settings import EngineSettings, FleetSettings, Lengths
from rollcast.sim.world import Ground
from rollcast.wire.ids import EncodingId
from rollcast.wire.limits import HEAT_MAP_CELLS_MAX
from rollcast.wire.versions.records import VerifiedVersion

DELTA = EncodingId(1)
KEYFRAME_TO_DELTA = 8.0  # bytes of a keyframe / bytes of a delta
CHUNK_BYTES = 1 << 18
_STRIPES = 8
_ROLLOUT_S = 24.0  # on a machine of speed 1
_TRAIN_S = 8.0
_SURPLUS = 2.0  # workers / workers that the learner needs, so that activation has a choice as they join and leave
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

#: Hardware, speed (1: an ordinary machine), concurrent rollouts, US dollars an hour, bytes a second up and down.
_KINDS = (
    ("NVIDIA H100 80GB HBM3", 2.5, 4, 2.20, 1.2e8, 1.2e8),
    ("NVIDIA GeForce RTX 4090", 1.4, 2, 0.44, 6.0e6, 3.0e7),
    ("NVIDIA GeForce RTX 3090", 1.0, 2, 0.22, 4.0e6, 2.5e7),
    ("NVIDIA A10G 24GB", 0.8, 2, 0.60, 6.0e7, 6.0e7),
    ("Apple M3 Max, 64 GB", 0.6, 1, 0.0, 2.5e6, 1.5e7),
    ("cpu, 16 cores", 0.3, 1, 0.0, 8.0e6, 2.0e7),
)
_SHARES = (0.06, 0.24, 0.30, 0.16, 0.12, 0.12)
_REGIONS = ("us-east", "us-west", "eu-central", "eu-north", "ap-south", "ap-northeast", "sa-east", "")
_DONORS = ("Ada", "Grace", "Edsger", "Barbara", "Alan", "Hedy", "Mary", "Radia", "Tim", "Katherine")


@dataclass(frozen=True, slots=True)
class Machine:
    """The identity and hardware that a worker reports, its engine's speed and its access line."""

    peer_id: str
    name: str
    public_name: str
    hardware: str
    region: str
    site: str
    software: str
    metered: bool
    engine: EngineSettings
    line: Line


def draw_machines(count: int, seed: int) -> tuple[Machine, ...]:
    """Return ``count`` sampled machines; the same seed gives the same machines."""
    random = Random(seed)
    return tuple(_machine(number, random) for number in range(count))


def _machine(number: int, random: Random) -> Machine:
    hardware, speed, at_once, _, up, down = random.choices(_KINDS, _SHARES)[0]
    region = random.choice(_REGIONS)
    donor = random.choice(_DONORS) if random.random() < 0.15 else ""
    kind = hardware.split()[-1 if "," not in hardware else 0].lower().rstrip(",")
    return Machine(
        peer_id=_peer_id(random.getrandbits(256)),
        name=f"{region or 'home'}-{kind}-{number:04}",
        public_name=donor,
        hardware=hardware,
        region=region,
        site=f"{region}-lab-{number % 3}" if region and random.random() < 0.1 else "",
        software="rollcast 0.7.0" if random.random() < 0.9 else "rollcast 0.6.2",
        metered=random.random() < 0.05,
        engine=EngineSettings(speed * random.lognormvariate(0.0, 0.15), at_once),
        line=Line(
            up_bytes_s=up * random.lognormvariate(0.0, 0.4),
            down_bytes_s=down * random.lognormvariate(0.0, 0.4),
            delay_s=random.choice((0.01, 0.02, 0.05, 0.09)),
            dialable=random.random() < 0.7,
        ),
    )


def _peer_id(bits: int) -> str:
    """Return a peer id from random bits, as long as a real one."""
    digits: list[str] = []
    while bits and len(digits) < 44:
        bits, digit = divmod(bits, 58)
        digits.append(_BASE58[digit])
    return "12D3KooW" + "".join(digits).ljust(44, "1")


def fleet_settings(machines: Sequence[Machine]) -> FleetSettings:
    """Return settings with a learner whose steps take seconds and need half of the rollouts these machines generate."""
    rollouts_per_s = sum(one.engine.speed * one.engine.concurrent_rollouts for one in machines) / _ROLLOUT_S
    samples = 8 if len(machines) >= 100 else 2
    groups = max(1, round(rollouts_per_s * _TRAIN_S / _SURPLUS / samples))
    prices = tuple(Price(hardware=kind[0], usd_per_hour=kind[3]) for kind in _KINDS if kind[3])
    return FleetSettings(
        peers=len(machines),
        steps=5000,
        staleness_limit=24,
        groups_per_step=groups,
        samples_per_group=samples,
        lease_deadline_s=600.0,
        prefetch_s=60.0,
        reconnect_grace_s=20.0,
        heartbeat_s=1.0,
        heartbeat_timeout_s=15.0,
        connection_timeout_s=12.0,
        start_within_s=15.0,
        tick_s=0.5,
        train_s=_TRAIN_S,
        checkpoint_every_steps=10,
        checkpoint_s=2.0,
        load_s=1.0,
        verify_s=0.3,
        verifiers=max(4, len(machines) // 16),
        engines=tuple(one.engine for one in machines),
        token_s=_ROLLOUT_S / 16,  # a simulated token stands for dozens of real ones (TOKENS_STAND_FOR)
        lengths=Lengths(median=16.0, sigma=0.5, most=64),
        slice_tokens=4,
        slice_s=1e9,
        partial_interval_s=0.0,
        version_bytes=4e7,
        piece_bytes=4e6,
        lines=tuple(one.line for one in machines),
        server_line=(server_line := Line(up_bytes_s=2.5e8, down_bytes_s=2.5e8, delay_s=0.005)),
        learner_line=server_line,
        scoring_queue_max=8192,
        activation=ActivationSettings(
            mode="act", prices=prices, replan=ReplanSettings(dwell_s=60.0, interval_s=60.0, gather_s=15.0)
        ),
        validate_every=1_000_000,
        own_checks=False,
    )


class ShownFleet(Fleet):
    """A simulated fleet made of the given machines.

    Args:
        coordinator: function that makes the coordinator's process.
    """

    def __init__(
        self, machines: Sequence[Machine], seed: int, coordinator: Callable[[Ground], CoordinatorNode]
    ) -> None:
        self.machines = machines
        super().__init__(fleet_settings(machines), seed, coordinator)
        for peer in self.peers:
            peer.receiver = LinkedReceiver(self.fluid, peer, seed)

    def name_of(self, number: int) -> str:
        return self.machines[number].peer_id


class LinkedReceiver(FluidReceiver):
    """A receiver whose copy arrives in the time of the fluid bound, and that reports chunks and links as relays do."""

    def __init__(self, broadcast: FluidBroadcast, node: PeerNode, seed: int) -> None:
        super().__init__(broadcast, node)
        self._ground: Ground = node.ground
        self._seed = seed
        self._part: Assignment | None = None
        self._links: tuple[LinkFacts, ...] = ()
        self._from_origin = self._from_peers = self._sent = 0
        self._saved = self._reparentings = 0
        random = Random(_number(seed, node.name))
        self._paces = [random.uniform(0.85, 1.25) for _ in range(_STRIPES)]

    def planned(self, plan: Any) -> None:
        """Accept the peer's part of the relay plan, and count the parents that changed while a version is received."""
        if self._part is not None and self._receiving is not None:
            before = {self._part.neighbours[one].peer_id for one in self._part.parents}
            after = {plan.part.neighbours[one].peer_id for one in plan.part.parents}
            self._reparentings += len(before - after)
        self._part = plan.part
        self._links = links_of(self._node.name, plan.part, self._seed, self._sent)

    def facts(self) -> dict[str, Any]:
        now, version_bytes = self._node.agenda.now, self._ground.settings.version_bytes
        chunks = math.ceil(version_bytes / CHUNK_BYTES)
        facts: dict[str, Any] = {
            "chunk_bytes_from_origin": self._from_origin,
            "chunk_bytes_from_peers": self._from_peers,
            "chunk_bytes_sent": self._sent,
            "reparentings": self._reparentings,
            "delta_bytes_saved": self._saved,
            "links": self._links,
        }
        if self._receiving is not None:
            share = min(1.0, (now - self._from_s) / max(1e-9, self._until_s - self._from_s))
            cells = [round(255 * min(1.0, share * pace)) for pace in self._paces]
            facts |= {
                "receiving_version": self._receiving.version,
                "receiving_chunks_have": min(chunks - 1, int(share * chunks)),
                "receiving_chunks_total": chunks,
                "receiving_encoding_id": DELTA,
                "receiving_map": bytes(cells) * (HEAT_MAP_CELLS_MAX // _STRIPES),
            }
        return facts

    def _received(self, verified: VerifiedVersion) -> None:
        was_receiving = self._receiving is verified
        super()._received(verified)
        if was_receiving and self._receiving is None:
            self._count()

    def _count(self) -> None:
        """Add one received version to the byte counts, and its copies that were sent to the children."""
        size, part = int(self._ground.settings.version_bytes), self._part
        if part is None:
            self._from_origin += size
            return
        parents = [part.neighbours[one].role for one in part.parents]
        origins = sum(role == "origin" for role in parents)
        from_origin = size * origins // max(1, len(parents))
        self._from_origin += from_origin
        self._from_peers += size - from_origin
        self._sent += size * sum(len(stripe.children) for stripe in part.stripes) // _STRIPES
        self._saved += int((KEYFRAME_TO_DELTA - 1.0) * size)
        self._links = links_of(self._node.name, part, self._seed, self._sent)


def links_of(name: str, part: Assignment, seed: int, sent_bytes: int) -> tuple[LinkFacts, ...]:
    """Return links to the children in the plan, at about the planned rates."""
    rates: dict[int, float] = {}
    for stripe in part.stripes:
        for child in stripe.children:
            rates[child] = rates.get(child, 0.0) + stripe.bytes_per_second
    if part.direct_copies and not rates:
        rates = dict.fromkeys(range(len(part.neighbours)), 1e6)
    found = []
    for child, rate in rates.items():
        other = part.neighbours[child]
        luck = _number(seed, name, other.peer_id)
        found.append(
            LinkFacts(
                peer_id=other.peer_id,
                transport="direct" if luck % 10 else "p2p",
                rtt_s=0.0004 if other.lan else 0.008 + (luck >> 8) % 180 / 1000,
                bytes_sent=sent_bytes // len(rates),
                bytes_received=0,
                sent_bytes_per_second=rate * (0.35 + (luck >> 16) % 100 / 100),
                congestion_control="bbr" if luck % 2 else "cubic",
            )
        )
    return tuple(found)


def _number(seed: int, *names: str) -> int:
    return int.from_bytes(blake3("/".join((str(seed), *names)).encode()).digest(length=6), "little")
