"""The standard fault mix: small fleets on a fast time scale, so that much happens in little time; each seed another."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from rollcast.sim.chance import Chance
from rollcast.sim.network import Line
from rollcast.sim.settings import FleetSettings

SECONDS = 90.0  # in which faults happen
GAP_S = 3.5  # between two of them, on average

_BASE = FleetSettings(
    receiving="chunks",
    version_bytes=6e5,
    chunks=6,
    train_s=1.5,
    finished_attempts_kept=64,
    scoring_queue_max=24,
    partial_tokens_max=64,
    validate_every=100,
)


def standard(seed: int) -> FleetSettings:
    """The fleet that the standard fault mix has for this seed."""
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
        continue_across_versions=random.random() < 0.5,
        partial_interval_s=random.choice([0.0, 0.5, 2.0]),
        duplicate_share=random.choice([0.0, 0.05, 0.3]),
        checkpoint_every_steps=random.choice([1, 3, 5]),
        token_s=random.choice([0.08, 0.15, 0.25]),
        lines=tuple(_line(random) for _ in range(4)),
    )


def _line(random: Random) -> Line:
    return Line(
        up_bytes_s=random.choice([1e6, 4e6, 1.25e7]),
        down_bytes_s=random.choice([4e6, 2.5e7]),
        delay_s=random.choice([0.005, 0.03, 0.1]),
        dialable=random.random() < 0.8,
    )
