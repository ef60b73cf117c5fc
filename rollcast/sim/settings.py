"""What a simulated fleet is like: its sizes, its times, and how its network and disks behave."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from coordinator.core.decisions.settings import PacingRule
from coordinator.core.events.prices import ActivationSettings
from coordinator.core.staleness.policy import LatePolicy
from rollcast.sim.kernel.network import Line, Weather

HOME = Line()
SERVER = Line(up_bytes_s=1.25e8, down_bytes_s=1.25e8, delay_s=0.005)

Receiving = Literal["fluid", "chunks"]

RESUME_S = 30.0  # I10: within so long steps go on after the last fault, in a fleet whose own times allow it
_UPLINKS_FULL = 2.0  # of one copy's time: each relay sends about one copy, and again what others spoiled

_drawing = Random()  # seeded anew for each draw: cheaper than a new one


@dataclass(frozen=True, slots=True)
class Lengths:
    """Completion lengths in tokens: log-normal, cut off at the sampling limit."""

    median: float = 6.0
    sigma: float = 0.4  # of the logarithm
    most: int = 32

    def of(self, seed: int) -> int:
        """The length of the completion that this seed draws: the same for every attempt at a slot."""
        _drawing.seed(seed)
        return max(1, min(self.most, round(self.median * _drawing.lognormvariate(0.0, self.sigma))))


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One peer's engine: how fast it is, where 1 is ordinary, and how many rollouts it draws at once."""

    speed: float
    concurrent_rollouts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Durations in seconds, sizes in bytes, steps in learner steps.

    Args:
        receiving: "chunks" runs the relays' cores chunk by chunk; "fluid" gives every peer its copy at the time of the
            fluid bound, for large fleets.
    """

    peers: int = 6
    # the run
    steps: int = 1_000_000
    staleness_limit: int = 3
    publish_every_steps: int = 1  # 0: as often as broadcasts allow
    late_policy: LatePolicy = "drop"
    late_wait_s: float = 2.0
    late_steps_max: int = 1
    pacing: PacingRule = "predict"
    lead_margin_steps: float = 0.5
    duplicate_share: float = 0.05
    partial_tokens_max: int = 100_000
    drop_without_advantage: bool = False
    groups_per_step: int = 2
    samples_per_group: int = 2
    lease_deadline_s: float = 10.0
    prefetch_batches: float = 2.0
    prefetch_s: float = 10.0
    reconnect_grace_s: float = 3.0
    demotion_s: float = 20.0
    quarantine_chunks: int = 3
    quarantine_accusers: int = 2
    scoring_queue_max: int = 256
    finished_attempts_kept: int = 65536
    # times
    tick_s: float = 0.5
    heartbeat_s: float = 1.0
    heartbeat_timeout_s: float = 4.0
    connection_timeout_s: float = 5.0  # without an answer a connection counts as lost
    start_within_s: float = 1.0  # peers come up in the first so many seconds
    boot_s: float = 0.5  # from a process's start to its first word
    train_s: float = 2.0
    checkpoint_every_steps: int = 3
    checkpoint_s: float = 0.5  # to copy and write one
    checkpoints_kept: int = 2
    load_s: float = 0.3  # of a version into the engine
    swap_s: float = 0.02
    verify_s: float = 0.1  # median of one rollout
    verifiers: int = 4
    # peers
    engines: tuple[EngineSettings, ...] = ()  # of peers, in turn; none: as many at once for all, and speeds are drawn
    concurrent_rollouts: int = 2
    token_s: float = 0.2  # of a peer of speed 1
    speed_sigma: float = 0.3  # of the logarithm of a peer's speed
    lengths: Lengths = Lengths()
    slice_tokens: int = 8
    slice_s: float = 1.0
    partial_interval_s: float = 2.0
    continue_across_versions: bool = False
    pauses_while_receiving: bool = False  # real peers do not; with "fluid" receiving only
    rollout_bytes: float = 20e3
    # versions
    receiving: Receiving = "fluid"
    version_bytes: float = 4e6
    chunks: int = 6
    versions_kept: int = 3  # on a peer's disk
    # which peers are on
    activation: ActivationSettings = field(default_factory=ActivationSettings)
    plan_s: float = 0.3  # until the planner answers
    operator_every_s: float = 0.0  # between two things that the operator does, on average; 0: nothing
    # machines
    lines: tuple[Line, ...] = (HOME,)  # of peers, in turn
    server_line: Line = SERVER
    weather: Weather = field(default_factory=lambda: Weather(jitter_s=0.01))
    sync_s: float = 0.004
    piece_bytes: float = 65536.0  # what a flow sends before the next one has its turn
    # checks
    validate_every: int = 500  # events of the coordinator's core between two of the dearer checks
    own_checks: bool = True  # the core's own validate() is among them

    @property
    def age_max(self) -> int:
        """The oldest that a trained rollout may be, in learner steps."""
        return self.staleness_limit + (self.late_steps_max if self.late_policy == "correct" else 0)

    @property
    def concurrent_rollouts_max(self) -> int:
        """Of any peer."""
        return max((one.concurrent_rollouts for one in self.engines), default=self.concurrent_rollouts)

    @property
    def rollouts_per_step(self) -> int:
        return self.groups_per_step * self.samples_per_group

    @property
    def resume_limit_s(self) -> float:
        """How long one learner step may take with nothing at hand: a new epoch, no rollout, a version nobody has."""
        noticed_s = self.heartbeat_timeout_s + self.reconnect_grace_s  # who is gone
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
        """I10: the longest until a new step after the last fault, with all that a learner may have to train again.

        That is what it trained since the last durable checkpoint, steps beside the writing of the next one included.
        """
        again_s = self.checkpoint_every_steps * self.train_s + self.checkpoint_s
        return max(RESUME_S, again_s + self.resume_limit_s)

    def _group_s(self, engine: EngineSettings) -> float:
        """A whole group from one engine: in one of its rounds the longest completion, in the others ordinary ones."""
        rounds = math.ceil(self.samples_per_group / engine.concurrent_rollouts)
        return self.token_s * (self.lengths.most + (rounds - 1) * self.lengths.median) / engine.speed
