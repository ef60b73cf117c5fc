"""Define the settings of a simulated fleet: sizes, times, and the behaviour of its network and disks."""

from __future__ import annotations

import math
from _random import Random as PlainRandom
from dataclasses import dataclass, field
from typing import Literal

from coordinator.core.events.prices import ActivationSettings
from coordinator.core.staleness.policy import LatePolicy, PacingRule
from rollcast.sim.kernel.network import Line, Weather
from rollcast.sim.kernel.rng import lognormal
from rollcast.wire.version_swap import AtVersionSwap

HOME = Line()
SERVER = Line(up_bytes_s=1.25e8, down_bytes_s=1.25e8, delay_s=0.005)

Receiving = Literal["fluid", "chunks"]

RESUME_S = 30.0  # I10: steps resume within this time after the last fault, unless a step of the fleet takes longer
_UPLINKS_FULL = 2.0  # copies that an uplink sends in a broadcast: one, and spoiled chunks again

_random = PlainRandom()  # seeded anew for each sample, which is cheaper than a new one


@dataclass(frozen=True, slots=True)
class Lengths:
    """The distribution of completion lengths in tokens: log-normal, cut off at the sampling limit.

    Args:
        quantiles: lengths that are equally likely, in place of the log-normal distribution.
    """

    median: float = 6.0
    sigma: float = 0.4  # standard deviation of the logarithm
    most: int = 32
    quantiles: tuple[int, ...] = ()

    def of(self, seed: int) -> int:
        """Return the length of a seed's completion in tokens, the same for every attempt at a slot."""
        _random.seed(seed)
        if self.quantiles:
            return self.quantiles[int(_random.random() * len(self.quantiles))]
        return max(1, min(self.most, round(self.median * lognormal(_random, self.sigma))))


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One peer's engine: its speed relative to an ordinary one, and how many rollouts it generates at once.

    ``reread_s``: seconds in which it reads the prefixes of rollouts in flight again after a swap of versions.
    """

    speed: float
    concurrent_rollouts: int
    reread_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The settings of one simulated fleet. Durations are in seconds, sizes in bytes, steps are learner steps.

    Args:
        receiving: "chunks" runs the relays' cores chunk by chunk; "fluid" gives every peer its copy at the time of the
            fluid bound, for large fleets.
    """

    peers: int = 6
    hoarders: int = 0  # further peers that ask for all work and do none
    pickers: int = 0  # further peers that choose among the S + 1 versions that they keep
    cells: int = 0  # besides these peers; each has a coordinator, an uplink and workers of its own
    cell_peers: int = 2  # workers of each cell
    coordinators: int = 1  # 2: a leader and a standby that share one database
    # the run
    steps: int = 1_000_000
    staleness_limit: int = 3
    publish_every_steps: int = 1  # 0 publishes as often as broadcasts allow
    late_policy: LatePolicy = "drop"
    late_wait_s: float = 2.0
    late_steps_max: int = 1
    pacing: PacingRule = "predict"
    lead_margin_steps: float = 0.5
    duplicate_share: float = 0.05
    partial_tokens_max: int = 100_000
    evaluation_share: float = 0.25
    evaluate_every_steps: int = 0  # 0: no evaluation is asked for
    evaluation_problems: int = 6
    evaluation_samples: int = 2
    evaluation_deadline_s: float = 30.0
    turns_most: int = 0  # turns that episodes may have; every second problem has an environment; 0: none has one
    agents: int = 1  # of each game
    environment_s: float = 0.1  # median seconds until an environment answers
    environment_faults: float = 0.0  # share of questions to which it dies or never answers
    environment_deadline_s: float = 3.0  # after which one without an answer counts as failed
    drop_without_advantage: bool = False
    groups_per_step: int = 2
    samples_per_group: int = 2
    lease_deadline_s: float = 10.0
    prefetch_batches: float = 2.0
    prefetch_s: float = 3.0
    reconnect_grace_s: float = 3.0
    liars_share_max: float = 0.25  # of the peers, which relay wrong bytes or are hostile
    scoring_queue_max: int = 256
    finished_attempts_kept: int = 65536
    # times
    tick_s: float = 0.5
    heartbeat_s: float = 1.0
    heartbeat_timeout_s: float = 4.0
    connection_timeout_s: float = 5.0  # a connection without an answer for this long counts as lost
    start_within_s: float = 1.0  # peers start at random moments within this time
    boot_s: float = 0.5  # seconds from a process's start to its first message
    train_s: float = 2.0
    checkpoint_every_steps: int = 3
    checkpoint_s: float = 0.5  # seconds to copy and write a checkpoint
    checkpoints_kept: int = 2
    load_s: float = 0.3  # seconds to load a version into the engine
    swap_s: float = 0.02
    verify_s: float = 0.1  # median seconds of one rollout
    verifiers: int = 4
    # peers
    engines: tuple[
        EngineSettings, ...
    ] = ()  # assigned to peers in turn; empty samples speeds and uses concurrent_rollouts
    concurrent_rollouts: int = 2
    token_s: float = 0.2  # seconds a token at speed 1
    speed_sigma: float = 0.3  # sigma of the logarithm of a peer's speed
    lengths: Lengths = Lengths()
    slice_tokens: int = 8
    slice_s: float = 1.0
    partial_interval_s: float = 2.0
    at_version_swap: AtVersionSwap = "finish"
    pauses_while_receiving: bool = False  # real peers do not pause; only with "fluid" receiving
    rollout_bytes: float = 20e3
    # versions
    receiving: Receiving = "fluid"
    version_bytes: float = 4e6
    chunks: int = 6
    versions_kept: int = 3  # on a peer's disk
    # activation of peers
    activation: ActivationSettings = field(default_factory=ActivationSettings)
    plan_s: float = 0.3  # seconds until the planner answers
    operator_every_s: float = 0.0  # mean time between two of the operator's orders; 0 for no operator
    # machines
    lines: tuple[Line, ...] = (HOME,)  # assigned to peers in turn
    server_line: Line = SERVER
    learner_line: Line = SERVER
    weather: Weather = field(default_factory=lambda: Weather(jitter_s=0.01))
    sync_s: float = 0.004
    piece_bytes: float = 65536.0  # bytes that a flow sends before the next flow has its turn
    # checks
    validate_every: int = 500  # events of the coordinator's core between two runs of the more expensive checks
    own_checks: bool = True  # whether these include the core's own validate()

    @property
    def age_max(self) -> int:
        """Return the highest age at which a rollout may be trained on, in learner steps."""
        return self.staleness_limit + (self.late_steps_max if self.late_policy == "correct" else 0)

    @property
    def concurrent_rollouts_max(self) -> int:
        """Return the most rollouts that any one peer generates at once."""
        return max((one.concurrent_rollouts for one in self.engines), default=self.concurrent_rollouts)

    @property
    def rollouts_per_step(self) -> int:
        return self.groups_per_step * self.samples_per_group

    @property
    def resume_limit_s(self) -> float:
        """Return how many seconds one learner step may take in the worst case.

        The worst case is a new epoch, no finished rollout, and a version that no peer holds yet.
        """
        noticed_s = self.heartbeat_timeout_s + self.reconnect_grace_s  # until the leases of a lost peer are reissued
        broadcast_s = _UPLINKS_FULL * self.version_bytes / min(line.up_bytes_s for line in self.lines)
        engines = self.engines or (EngineSettings(1.0, self.concurrent_rollouts),)
        generated_s = max(map(self._group_s, engines))
        return (
            noticed_s
            + self.checkpoint_s  # an epoch begins with one
            + broadcast_s
            + self.load_s
            + generated_s
            + self.verify_s
            + self.train_s
        )

    @property
    def calm_limit_s(self) -> float:
        """Return the longest time that I10 allows from the last fault to a new step, with all repeated work.

        The learner may have to repeat the steps since its last durable checkpoint, including those that it trained
        while it wrote the next one.
        """
        again_s = self.checkpoint_every_steps * self.train_s + self.checkpoint_s
        return max(RESUME_S, again_s + self.resume_limit_s)

    def _group_s(self, engine: EngineSettings) -> float:
        """Return the seconds for a whole group on one engine, with one round of the longest completion."""
        rounds = math.ceil(self.samples_per_group / engine.concurrent_rollouts)
        return self.token_s * (self.lengths.most + (rounds - 1) * self.lengths.median) / engine.speed
