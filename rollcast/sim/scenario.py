"""Define the fleets that are simulated: the standard fault mix, and fleets on the time scale of real runs.

The standard fault mix uses small fleets on a fast time scale, so that many events happen in little CPU time. Each seed
gives another fleet.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from capacity.replan.events import ReplanSettings
from coordinator.core.events.prices import ActivationSettings, Price
from rollcast.sim.kernel.network import Line
from rollcast.sim.kernel.rng import Chance
from rollcast.sim.settings import FleetSettings, Lengths

# The longer of two log-normal completions with sigma 0.4, in multiples of the median: its mean and 90th percentile.
_LONGER_OF_TWO, _LONGER_OF_TWO_P90 = 1.25, 1.92
_LONGER_OF_TWO_TAILED, _TAILED_P90 = 1.9, 2.8  # with sigma 0.8: the mean of the longer one, the p90 of a single one
_BCAST_S = 13.0  # seconds of a broadcast of a realistic fleet's versions, by the fluid bound

SECONDS = 90.0  # virtual seconds during which faults happen
GAP_S = 3.5  # mean time between two faults

_BASE = FleetSettings(
    receiving="chunks",
    version_bytes=6e5,
    chunks=6,
    train_s=1.5,
    finished_attempts_kept=64,
    scoring_queue_max=24,
    partial_tokens_max=16,
    validate_every=100,
)


def standard(seed: int) -> FleetSettings:
    """Return the fleet that the standard fault mix uses for this seed."""
    random = Chance(seed).of("scenario")
    return replace(
        _BASE,
        peers=random.randint(4, 7),
        staleness_limit=random.choice([1, 2, 3]),
        publish_every_steps=random.choice([1, 1, 1, 2, 0]),
        late_policy=random.choice(["drop", "drop", "wait", "correct"]),
        pacing=random.choice(["predict", "count"]),
        groups_per_step=random.choice([2, 3]),
        samples_per_group=random.choice([2, 3]),
        at_version_swap="continue" if random.random() < 0.5 else "finish",
        partial_interval_s=random.choice([0.0, 0.5, 2.0]),
        duplicate_share=random.choice([0.0, 0.05, 0.3]),
        checkpoint_every_steps=random.choice([1, 3, 5]),
        token_s=random.choice([0.08, 0.15, 0.25]),
        lines=tuple(_line(random) for _ in range(4)),
        drop_without_advantage=random.random() < 0.25,
    )


def priced(seed: int) -> FleetSettings:
    """Return the standard fleet with priced workers, a capacity model that switches them, and an active operator."""
    random = Chance(seed).of("prices")
    base = standard(seed)
    prices = tuple(Price(name=f"peer-{one}", usd_per_hour=round(random.uniform(0.2, 2.0), 2)) for one in range(7))
    replan = ReplanSettings(dwell_s=6.0, interval_s=10.0, gather_s=0.5)
    return replace(base, activation=ActivationSettings(mode="act", prices=prices, replan=replan), operator_every_s=6.0)


def realistic(peers: int) -> FleetSettings:
    """Return a fleet on the time scale of real runs: steps and rollouts of about a minute, heartbeats every 10 s.

    It has a quarter more workers than the learner needs; each peer generates two rollouts at once.
    """
    return FleetSettings(
        peers=peers,
        staleness_limit=4,
        groups_per_step=max(1, round(peers * 0.32)),
        samples_per_group=4,
        lease_deadline_s=400.0,
        prefetch_s=90.0,
        heartbeat_s=10.0,
        heartbeat_timeout_s=30.0,
        reconnect_grace_s=30.0,
        connection_timeout_s=20.0,
        start_within_s=30.0,
        tick_s=5.0,
        train_s=55.0,
        checkpoint_every_steps=10,
        checkpoint_s=10.0,
        load_s=5.0,
        verify_s=0.5,
        verifiers=max(4, peers // 16),
        token_s=60.0 / 16,  # one simulated token stands for some dozens, which keeps large fleets fast to simulate
        lengths=Lengths(median=16.0, sigma=0.4, most=64),
        slice_tokens=64,
        slice_s=1e9,
        partial_interval_s=0.0,
        version_bytes=2e8,
        piece_bytes=2e7,
        sync_s=0.004,
        scoring_queue_max=4096,
        validate_every=max(20_000, 20 * peers),  # one check costs as much as there are peers
    )


def paced(peers: int, surplus: float = 1.25) -> FleetSettings:
    """Return a realistic fleet with ``surplus`` times the workers that the learner needs, and S = S_needed.

    Batches are not interrupted, so a new version waits for the batch that is running when it arrives:
    S_needed = ceil((T_bcast + T_load + T_batch + T_batch p90) / T_train + 1).
    """
    base = replace(realistic(peers), speed_sigma=0.1)
    batch_s = base.token_s * base.lengths.median * _LONGER_OF_TWO
    late_s = base.token_s * base.lengths.median * _LONGER_OF_TWO_P90
    rollouts = peers * base.concurrent_rollouts * base.train_s / batch_s / surplus
    groups = max(1, round(rollouts / base.samples_per_group))
    needed = math.ceil((_BCAST_S + base.load_s + batch_s + late_s) / base.train_s + 1.0)
    return replace(base, groups_per_step=groups, staleness_limit=needed)


def long_tailed(peers: int, surplus: float) -> FleetSettings:
    """Return a paced fleet whose completion lengths have a long tail and whose rollouts are uploaded one by one.

    S = S_needed as in ``paced``, by the 90th percentile of a single rollout.
    """
    base = replace(
        realistic(peers),
        speed_sigma=0.1,
        lengths=Lengths(median=16.0, sigma=0.8, most=200),
        slice_tokens=2,
        lease_deadline_s=1500.0,
    )
    median_s = base.token_s * base.lengths.median
    batch_s, late_s = median_s * _LONGER_OF_TWO_TAILED, median_s * _TAILED_P90
    rollouts = peers * base.concurrent_rollouts * base.train_s / batch_s / surplus
    groups = max(1, round(rollouts / base.samples_per_group))
    needed = math.ceil((_BCAST_S + base.load_s + batch_s + late_s) / base.train_s + 1.0)
    return replace(base, groups_per_step=groups, staleness_limit=needed)


def _line(random: Random) -> Line:
    return Line(
        up_bytes_s=random.choice([1e6, 4e6, 1.25e7]),
        down_bytes_s=random.choice([4e6, 2.5e7]),
        delay_s=random.choice([0.005, 0.03, 0.1]),
        dialable=random.random() < 0.8,
    )
