from __future__ import annotations

from rollcast.sim.kernel.rng import Chance


def test_a_new_concern_changes_no_other_draws() -> None:
    alone, beside = Chance(7), Chance(7)
    beside.of("weather").random()
    assert [alone.of("faults").random() for _ in range(3)] == [beside.of("faults").random() for _ in range(3)]
    assert Chance(8).of("faults").random() != Chance(7).of("faults").random()
    assert alone.of("faults") is alone.of("faults")
