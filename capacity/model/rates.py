"""How many rollouts a second the workers must make together for the learner never to wait."""

from __future__ import annotations


def rollout_rate_needed(
    *,
    rollouts_per_step: int,
    t_train_s: float,
    t_bcast_s: float = 0.0,
    publish_every_steps: int = 1,
    pauses_while_receiving: bool = False,
) -> float | None:
    """Rollouts a second that all workers together must make.

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
