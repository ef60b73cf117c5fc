"""What the learner needs of its workers: sizes, times, limits and prices of a run."""

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
    """M: what each worker receives for one version: a keyframe, or a delta if deltas are used."""
    learner_upload_bytes_per_second: float
    """U0: uplink of the origin, or of what serves the first copies."""
    learner_egress_usd_per_gb: float = 0.0
    """Price of what the origin sends; 1 GB = 1e9 bytes."""
    topology: Topology = field(default_factory=Topology)
    """Shape in which copies travel."""
    pauses_while_receiving: bool = False
    """Whether workers stop generating while they receive."""
    t_swap_s: float = 0.0
    """Seconds that a worker stands still to put a new version into use."""
    t_load_s: float = 0.0
    """From the verified copy to its use, generating meanwhile."""
    t_score_s: float = 0.0
    """From a rollout's end to its score."""
    headroom: float = 1.05
    """phi: rate bought / rate needed, at least."""
    share_without_a_region: float = 0.0
    """Share of the needed rate that is left when any one region is lost; 0: not asked for."""
    chance_z: float = 0.0
    """The rate must hold at so many standard deviations (2.33: 99 %); 0: not asked for."""
    usd_per_hour_max: float | None = None
    """Budget for the workers and their traffic; None: none."""
    learner_usd_per_hour: float = 0.0
    """Price of the learner's machine."""
    storage_usd_per_hour: float = 0.0
    """Price of the origin's and the checkpoints' disks."""

    @property
    def budget_s(self) -> float:
        """What generating and broadcasting may take together: ``(S - kappa) T_train``, less scoring and loading."""
        return (self.staleness_limit - self.publish_every_steps) * self.t_train_s - self.t_score_s - self.t_load_s
