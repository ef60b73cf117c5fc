"""Compute how large the staleness limit must be for the learner never to wait for rollouts that are young enough."""

from __future__ import annotations

import math


def staleness_needed(*, t_bcast_s: float, t_gen_p90_s: float, t_train_s: float, publish_every_steps: int) -> int:
    """Return the smallest staleness limit S, in learner steps, that lets the learner run without a pause.

        S_needed = ceil((T_bcast + T_gen_p90) / T_train + kappa)

    Derivation. With a version every kappa steps, the newest one is up to kappa steps old when a worker's next
    generation could start, counted from the batch that follows its publication. It then takes T_bcast until the worker
    holds it and T_gen until a rollout made with it is complete (p90: the tail is left to the gate). The learner, which
    never waits, does (T_bcast + T_gen) / T_train steps meanwhile. Ages are whole steps, hence the ceiling; with
    integer kappa this equals kappa + ceil((T_bcast + T_gen) / T_train), the age of the oldest rollout consumed.

    Source: the bounded-staleness rule of ECHO-2 (arXiv 2602.02192), whose default kappa = S - 1 is the special case
    T_bcast + T_gen <= T_train; derived anew and checked by simulation in the design notes on capacity.

    Args:
        t_bcast_s: seconds from announcement to the last active worker's verified copy.
        t_gen_p90_s: seconds of one rollout, 90th percentile.
        t_train_s: seconds of one learner step, waiting not counted; must be positive.
        publish_every_steps: kappa, learner steps between two published versions; at least 1.

    Raises:
        ValueError: an argument is out of its range.
    """
    if t_bcast_s < 0 or t_gen_p90_s < 0 or t_train_s <= 0 or publish_every_steps < 1:
        raise ValueError("durations must not be negative, t_train_s positive, publish_every_steps at least 1")
    return math.ceil((t_bcast_s + t_gen_p90_s) / t_train_s + publish_every_steps)
