"""The settings of the coordinator's core, fixed at its start."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.core.broadcast.nodes import PlanShape
from coordinator.core.broadcast.probing import ProbeSettings
from coordinator.core.events.prices import ActivationSettings
from coordinator.core.leases.stages import LengthStage
from coordinator.core.reach.dial_settings import DialBackSettings
from coordinator.core.staleness.policy import LatePolicy, PacingRule, StalenessRules
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.rollouts import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    """Limits on episodes. The longest completion, observations included, is that of the sampling settings."""

    turns_max: int = 16
    """The most assistant turns; after the last one the episode ends, as truncated."""
    seconds_max: float = 1800.0
    """No turn begins later than so many seconds after the first turn was received: the episode ends, as truncated."""
    sticky_s: float = 2.0
    """How long the next turn waits for the peer that made the last one, which may have its keys and values."""
    answer_s: float = 300.0
    """An environment that does not answer for so many seconds has failed."""
    failures_max: int = 3
    """How often in a row an environment may fail before its group is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Settings of the core. Durations in seconds, steps in learner steps."""

    run_id: RunId
    """Id of the run, for the status."""
    run_name: str = "local"
    """Name of the run, for the status."""
    learner_peer_id: PeerId | None = None
    """Identity of the learner in chunk links, for the status; None if it is not known."""
    seed: int = 0
    """Every slot's sampling seed follows from it; 64 bits, and a secret where peers are strangers."""
    steps: int
    """Learner steps until the run is finished; no prompt group is opened for a step beyond."""
    staleness_limit: int
    """S: the age, in learner steps, up to which rollouts are trained."""
    publish_every_steps: int = 1
    """kappa: learner steps between two published versions; 0: as few as measured broadcasts allow."""
    late_policy: LatePolicy = "drop"
    """How late rollouts are treated; see coordinator.core.staleness.policy."""
    late_wait_s: float = 5.0
    """How long ``wait`` may hold a batch back."""
    late_steps_max: int = 1
    """Learner steps beyond S that ``correct`` still trains on."""
    groups_per_step: int
    """Prompt groups in a batch."""
    samples_per_group: int
    """Rollouts of one prompt."""
    sampling: Sampling
    """Sampling settings, sent with every lease."""
    drop_without_advantage: bool = False
    """Whether a group whose rewards are all the same is dropped and replaced; see
    coordinator.core.decisions.rollouts."""
    drops_per_step_max: int = 0
    """The most groups dropped in this way for one batch; further ones are trained on."""
    stages: tuple[LengthStage, ...] = ()
    """Stages of the run in their order, the first from step 0 on; empty: ``sampling`` holds for the whole run."""
    staged_prompts: bool = False
    """Whether it matters for which step a prompt is sampled, because the mixture changes."""
    vocabulary_size: int
    """Token ids from 0 up to this one, exclusive, exist."""
    lease_deadline_s: float = 30.0
    """A slot without a rollout for this long after its issue is issued again."""
    lease_deadline_most_s: float = 0.0
    """The same where the peer is slow, or no speed is known: the expected time decides, up to this one. With less than
    lease_deadline_s every lease has that deadline."""
    prefetch_batches: float = 2.0
    """How many generation batches of slots a peer may hold."""
    prefetch_s: float = 3.0
    """A peer whose speed is known holds a batch, and at most the slots that it completes in this time besides it."""
    reconnect_grace_s: float = 3.0
    """A peer that is away for longer keeps its leases, but other peers may be given the same slots."""
    pacing: PacingRule = "predict"
    """How work that would be too old is held back: by measured times too, by counting groups only, or not at all."""
    lead_margin_steps: float = 0.5
    """Prompt groups kept open beyond a batch and those in flight, in batches."""
    duplicate_share: float = 0.05
    """The most attempts, as a share of all, that are given to a second peer because the first is slow."""
    evaluation_share: float = 0.25
    """The share of the fleet, by slots, that may evaluate while batches are still to be formed; at least one peer."""
    episodes: EpisodeRules = field(default_factory=EpisodeRules)
    """Limits on episodes, which problems with an environment have."""
    partial_tokens_max: int = 1_000_000
    """The most tokens of unfinished rollouts that are kept, in memory."""
    heartbeat_timeout_s: float = 5.0
    """A member that sends nothing for this long is considered disconnected."""
    tick_s: float | None = None
    """The interval at which ticks come: what one is late does not count as silence of members. None: late ticks do."""
    no_peer_timeout_s: float = 3600.0
    """With no peer that may work for this long, counted from the first version on, the run fails with RC202."""
    start_timeout_s: float = 3600.0
    """With no origin, or no learner since the start, for this long the run fails with RC201."""
    learner_timeout_s: float = 1800.0
    """With no call from a learner that has called before for this long the run fails with RC201."""
    scoring_queue_max: int = 4096
    """The most rollouts received and not yet scored; beyond it uploads are answered `busy`."""
    scoring_failed_share_max: float = 0.5
    """Share of failures among the newest verdicts above which scoring, and with it the issue of leases, is paused."""
    prompts_ahead_max: int = 256
    """The most problems sampled ahead of need: bounds memory, and what is sampled again after a crash."""
    plan_shape: PlanShape = field(default_factory=PlanShape)
    """How relay plans are made."""
    probes: ProbeSettings = field(default_factory=ProbeSettings)
    """How much padding peers send to measure uplinks that a plan needs to know."""
    dial_backs: DialBackSettings = field(default_factory=DialBackSettings)
    """Whether, and where, members' addresses are dialled to check that other peers can reach them."""
    lan_preferred: bool = True
    """Whether peers of one local network are preferred as each other's sources and exempt from caps."""
    activation: ActivationSettings = field(default_factory=ActivationSettings)
    """Which peers the capacity model switches on."""
    finished_attempts_kept: int = 65536
    """Finished attempts remembered to answer repeated uploads; one that is not is refused, never accepted twice."""
    is_cell: bool = False
    """Whether the work is that of a head, brought by this cell's uplink: no batches are formed here."""
    validate_every_event: bool = False
    """Check every invariant after every event (tests)."""

    @property
    def longest_lengths(self) -> frozenset[int]:
        """Return the longest completions, in tokens, that leases of any stage allow."""
        return frozenset({stage.new_tokens_max for stage in self.stages} or {self.sampling.max_new_tokens})

    @property
    def staleness_rules(self) -> StalenessRules:
        """The staleness rules in force at the start."""
        return StalenessRules(
            self.staleness_limit, self.publish_every_steps, self.late_policy, self.late_wait_s, self.late_steps_max
        )
