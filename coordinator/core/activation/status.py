"""Describe the capacity model's decisions for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedSet:
    """Result of the last plan; docs/architecture.md explains the model's terms.

    Args:
        number: number of the plan, as in the causes of the run's story.
        infeasible: why no set of peers will do; empty if this one does.
        remedies: single changes that would help.
    """

    number: int
    on: int
    off: int
    usd_per_hour: float
    lp_bound_usd_per_hour: float
    rate_rollouts_per_second: float
    rate_needed_rollouts_per_second: float
    t_bcast_s: float
    staleness_needed: int
    utilisation: float
    solve_s: float
    infeasible: str
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ActivationStatus:
    """State of the capacity model, and how many peers are on and off.

    Args:
        mode: off, advise or act.
        usd_per_hour: price of the peers that are on.
        switches: number of switches since the coordinator's start.
        plan: the last plan; None before the first one.
        failed: why the last plan failed; empty if it did not.
        usd_per_hour_max, usd_total_max: spending limits in US dollars; None for no limit.
        rate_correction, t_bcast_correction, t_train_correction: measured / predicted.
    """

    mode: str
    on: int
    standby: int
    usd_per_hour: float
    switches: int
    plan: PlannedSet | None
    failed: str
    rate_correction: float = 1.0
    t_bcast_correction: float = 1.0
    t_train_correction: float = 1.0
    usd_per_hour_max: float | None = None
    usd_total_max: float | None = None
