"""What being taken away costs a worker.

Rates seen on real spot markets: 0.02 to 1.8 preemptions per node and hour, correlated up to 0.59 within a region and
0.27 across (design notes on capacity).
"""

from __future__ import annotations

from capacity.model.units import SECONDS_PER_HOUR


def lost_share(preemptions_per_hour: float, lost_work_s: float, restart_s: float = 0.0) -> float:
    """q: share of its time that a worker makes nothing useful, at most 1.

    Up-times of ``U = 3600 / preemptions_per_hour`` seconds on average alternate with restarts; in each cycle of
    ``U + restart`` the work that was under way and the restart are lost (renewal reward theorem). With the restart
    counted as lost work instead of time without pay the share is a little higher, never lower.

    Args:
        preemptions_per_hour: of up-time.
        lost_work_s: of unfinished rollouts, each time.
        restart_s: until a replacement makes rollouts.

    Raises:
        ValueError: one of them is negative.
    """
    if not preemptions_per_hour >= 0 or not lost_work_s >= 0 or not restart_s >= 0:
        raise ValueError("preemptions and what each costs must not be negative")
    if preemptions_per_hour == 0:
        return 0.0
    up_s = SECONDS_PER_HOUR / preemptions_per_hour
    return min(1.0, (lost_work_s + restart_s) / (up_s + restart_s))


def lost_work_s(*, t_gen_mean_s: float, t_gen_mean_square_s2: float, notice_s: float = 0.0) -> float:
    """Seconds of work under way that a preemption ends, of each slot.

    A slot that is interrupted at a random moment has worked ``E[T^2] / 2 E[T]`` seconds on its rollout on average (the
    inspection paradox: long rollouts are the likelier to be hit). With notice, rollouts that end within it are handed
    in and none is begun; at most the notice is saved.

    Args:
        t_gen_mean_s: mean seconds of a rollout.
        t_gen_mean_square_s2: mean of the square of it.
        notice_s: warning before it is taken away.

    Raises:
        ValueError: the mean is not positive.
    """
    if not t_gen_mean_s > 0:
        raise ValueError("t_gen_mean_s must be positive")
    return max(0.0, t_gen_mean_square_s2 / (2.0 * t_gen_mean_s) - notice_s)
