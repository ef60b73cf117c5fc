"""State what a run needs of its workers: sizes, times, limits, prices, its conduct, and the rate of rollouts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from capacity.model.topologies import Topology
from rollcast.wire.version_swap import AtVersionSwap

NOTICE_S = 0.07  # seconds of a round trip over two access links of homes, with a sync to disk
HASH_S = 0.1  # seconds of a learner's work on a version besides the push


def publish_seconds(update_bytes: float, upload_bytes_per_second: float) -> float:
    """Return the seconds that publishing takes: up the learner's own line, then down the origin's, which is as fast."""
    return HASH_S + 2.0 * update_bytes / upload_bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """The rules by which a run is operated; defaults are those of the coordinator's and the peers' settings.

    Args:
        samples_per_group: rollouts of one prompt: a group enters a batch when its last one is scored.
        lead_margin_steps: prompt groups kept open beyond a batch and the work in flight, in batches.
        prefetch_batches, prefetch_s: limits on the slots that a worker may hold: generation batches, and seconds of
            work besides the running batch.
        whole_batches: whether rollouts generated together are uploaded together, when the longest has ended.
            Otherwise each is uploaded when it ends, and another one takes its place.
        at_version_swap: what rollouts in flight do when a new version is active (rollcast.wire.version_swap). With
            "finish" nothing takes the places of those that end meanwhile.
        t_publish_s: from the end of a learner step to its version's announcement: hashing, writing, pushing.
        t_notice_s: a round trip: the announcement of a version, and the report that it is held.
        t_turn_s: from a rollout's end to the lease that takes its place: a round trip and a durable write.
        reconnect_grace_s: seconds after which a disconnected worker's slots are also leased to others.
    """

    samples_per_group: int = 1
    lead_margin_steps: float = 0.5
    prefetch_batches: float = 2.0
    prefetch_s: float = 3.0
    whole_batches: bool = False
    at_version_swap: AtVersionSwap = "continue"
    t_publish_s: float = 0.0
    t_notice_s: float = 0.0
    t_turn_s: float = 0.0
    reconnect_grace_s: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One run as the planner sees it. Durations in seconds, sizes in bytes, rates per second, prices in US dollars.

    Symbols are those of docs/capacity.md and of ECHO-2 (arXiv 2602.02192).
    """

    rollouts_per_step: int
    """R: rollouts in one batch."""
    t_train_s: float
    """T_train: one learner step, waiting not counted."""
    staleness_limit: int
    """S: hard limit, in learner steps."""
    publish_every_steps: int = 1
    """kappa: learner steps between two published versions."""
    update_bytes: float
    """M: bytes that each worker receives for one version: a keyframe, or a delta if deltas are used."""
    join_bytes: float = 0.0
    """What a worker receives once before its first version, when it joins: the base of adapters, or the keyframe that
    deltas begin with; 0: versions are whole."""
    learner_upload_bytes_per_second: float
    """U0: uplink of the origin, or of the server of the first copies."""
    learner_egress_usd_per_gb: float = 0.0
    """Price of what the origin sends; 1 GB = 1e9 bytes."""
    topology: Topology = field(default_factory=Topology)
    """Shape in which copies travel."""
    pauses_while_receiving: bool = False
    """Whether workers stop generating while they receive."""
    t_swap_s: float = 0.0
    """Seconds for which a worker generates nothing while it swaps versions."""
    t_load_s: float = 0.0
    """Seconds from the verified copy to its use; the worker generates meanwhile."""
    t_score_s: float = 0.0
    """Seconds from a rollout's end to its score."""
    headroom: float = 1.05
    """phi: least ratio of the rate bought to the rate needed."""
    margin_steps: float = 0.0
    """Learner steps of S that the planner leaves free: rates alone do not see how long groups queue."""
    share_without_a_region: float = 0.0
    """Share of the needed rate that is left when any one region is lost; 0: not asked for."""
    chance_z: float = 0.0
    """The rate must hold at so many standard deviations (2.33: 99 %); 0: not asked for."""
    region_correlation: float = 0.0
    """Correlation of what preemptions take from two workers of one region, for ``chance_z``; 0: independent."""
    usd_per_hour_max: float | None = None
    """Budget for the workers and their traffic; None: no limit."""
    learner_usd_per_hour: float = 0.0
    """Price of the learner's machine."""
    coordinator_usd_per_hour: float = 0.0
    """Price of the machine of the coordinator and the origin."""
    storage_usd_per_hour: float = 0.0
    """Price of the origin's and the checkpoints' disks."""
    conduct: Conduct = field(default_factory=Conduct)
    """How the run is operated: groups, what happens at a new version, lead, publishing."""
    length_quantiles: tuple[float, ...] = ()
    """Lengths of rollouts in tokens: quantiles at the middles of equal shares, ascending (a histogram whose bins hold
    equal shares). Empty: log-normal, fitted to each worker's mean and p90."""

    @property
    def budget_s(self) -> float:
        """Seconds for generating and broadcasting together: ``(S - kappa) T_train``, less what comes before and after.

        Before come publishing and the announcement; after, loading and scoring. The margin is left free.
        """
        steps = self.staleness_limit - self.publish_every_steps - self.margin_steps
        return steps * self.t_train_s - self.fixed_s

    @property
    def fixed_s(self) -> float:
        """Seconds of a rollout's age that no worker changes: publishing, the announcement, loading and scoring."""
        return self.conduct.t_publish_s + self.conduct.t_notice_s + self.t_score_s + self.t_load_s

    def joining_s(self, download_bytes_per_second: float) -> float:
        """Return the seconds for which a worker that joins receives ``join_bytes`` over its own downlink."""
        return self.join_bytes / download_bytes_per_second

    def broadcast_s(self, t_gen_s: float) -> float:
        """Return the seconds that are left to broadcast a version beside this time to generate.

        A broadcast that took longer than the time between two versions would share its links with the next one, so the
        rest of the budget is of no use to it: that keeps the steady state of every link within the broadcast's rows.
        """
        return min(self.budget_s - t_gen_s, self.version_period_s)

    @property
    def version_period_s(self) -> float:
        """Seconds between two versions while the learner never waits: ``kappa T_train``."""
        return self.publish_every_steps * self.t_train_s


def with_link(
    demand: Demand, *, update_bytes: float | None = None, learner_upload_bytes_per_second: float | None = None
) -> Demand:
    """Return the demand with other versions or another uplink, and with the time to publish where it follows from both.

    A time to publish that was measured, or given, stays.
    """
    found = replace(
        demand,
        update_bytes=demand.update_bytes if update_bytes is None else update_bytes,
        learner_upload_bytes_per_second=(
            demand.learner_upload_bytes_per_second
            if learner_upload_bytes_per_second is None
            else learner_upload_bytes_per_second
        ),
    )
    if not _publishes_as_derived(demand):
        return found
    seconds = publish_seconds(found.update_bytes, found.learner_upload_bytes_per_second)
    return replace(found, conduct=replace(found.conduct, t_publish_s=seconds))


def _publishes_as_derived(demand: Demand) -> bool:
    upload = demand.learner_upload_bytes_per_second
    return upload > 0 and math.isclose(demand.conduct.t_publish_s, publish_seconds(demand.update_bytes, upload))


def rollout_rate_needed(
    *,
    rollouts_per_step: int,
    t_train_s: float,
    t_bcast_s: float = 0.0,
    publish_every_steps: int = 1,
    pauses_while_receiving: bool = False,
) -> float | None:
    """Return the rollouts a second that all workers together must generate for the learner never to wait.

    Workers that receive in the background and swap without a pause must keep up with the learner's consumption,
    ``R / T_train``. Workers that stop while they receive lose T_bcast every kappa steps, so that only
    ``T_train - T_bcast / kappa`` of each step is left to them.

    Source: ECHO-2 (arXiv 2602.02192), derived anew in the design notes on capacity.

    Args:
        rollouts_per_step: R, rollouts in one batch.
        t_train_s: seconds of one learner step, waiting not counted.
        t_bcast_s: seconds from announcement to the last active worker's verified copy.
        publish_every_steps: kappa, learner steps between two published versions.
        pauses_while_receiving: whether workers stop generating while they receive.

    Returns:
        The rate in rollouts per second; None if no number of workers is enough, because they would only receive.

    Raises:
        ValueError: an argument is out of its range.
    """
    if rollouts_per_step < 1 or t_train_s <= 0 or t_bcast_s < 0 or publish_every_steps < 1:
        raise ValueError("rollouts_per_step and publish_every_steps must be at least 1, t_train_s positive")
    productive_s = t_train_s - t_bcast_s / publish_every_steps if pauses_while_receiving else t_train_s
    return rollouts_per_step / productive_s if productive_s > 0 else None
