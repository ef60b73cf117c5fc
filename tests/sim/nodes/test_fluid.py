from __future__ import annotations

from dataclasses import replace

import pytest

from rollcast.sim.kernel.network import Line
from rollcast.sim.scenario import realistic
from rollcast.sim.simulation import Outcome, simulate

#: A copy takes most of a step, and there is hardly more work than the learner needs.
SETTINGS = replace(realistic(8), groups_per_step=3, speed_sigma=0.0, version_bytes=6e8, piece_bytes=6e7)


def outcome(seed: int = 1, **changes: object) -> Outcome:
    found = simulate(replace(SETTINGS, **changes), seed, seconds=1800.0)  # type: ignore[arg-type]
    assert not found.violations, "\n".join(map(str, found.violations))
    return found


@pytest.mark.sim
def test_peers_that_pause_while_they_receive_generate_less() -> None:
    seeds = range(1, 4)  # a single one differs by a step or two with the moments of requests
    busy = [outcome(seed) for seed in seeds]
    paused = [outcome(seed, pauses_while_receiving=True) for seed in seeds]
    assert all(one.issued == one.trained + sum(one.dropped.values()) for one in paused)
    assert sum(one.trained for one in paused) < 0.9 * sum(one.trained for one in busy)


@pytest.mark.sim
def test_peers_that_do_not_relay_slow_the_copies_down() -> None:
    relaying = outcome()
    alone = outcome(lines=(Line(relays=False),))
    assert alone.t_bcast_s == pytest.approx(1.06 * 8 * 6e8 / 1.25e8, rel=0.1), "the origin sends every copy"
    assert relaying.t_bcast_s < alone.t_bcast_s


@pytest.mark.sim
def test_a_copy_that_replaced_another_one_is_not_replaced_in_turn() -> None:
    slow = outcome(version_bytes=2.4e9, piece_bytes=2.4e8, staleness_limit=9)
    copy_s = 1.06 * 8 * 2.4e9 / (1.25e8 + 8 * 1.25e7)
    assert copy_s > SETTINGS.train_s
    assert slow.t_bcast_s < 1.5 * copy_s + SETTINGS.train_s, "half of one, and all of the next"
