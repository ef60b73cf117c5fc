"""State what a run needs of its workers: sizes, times, limits, prices and the rate of rollouts."""

from __future__ import annotations

from dataclasses import dataclass, field

from capacity.model.topologies import Topology


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
    share_without_a_region: float = 0.0
    """Share of the needed rate that is left when any one region is lost; 0: not asked for."""
    chance_z: float = 0.0
    """The rate must hold at so many standard deviations (2.33: 99 %); 0: not asked for."""
    usd_per_hour_max: float | None = None
    """Budget for the workers and their traffic; None: no limit."""
    learner_usd_per_hour: float = 0.0
    """Price of the learner's machine."""
    storage_usd_per_hour: float = 0.0
    """Price of the origin's and the checkpoints' disks."""

    @property
    def budget_s(self) -> float:
        """Seconds for generating and broadcasting together: ``(S - kappa) T_train``, less scoring and loading."""
        return (self.staleness_limit - self.publish_every_steps) * self.t_train_s - self.t_score_s - self.t_load_s


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
