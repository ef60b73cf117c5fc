"""Test that calls happen in the order of their times, then in that of their scheduling."""

from __future__ import annotations

from random import Random

from rollcast.sim.kernel.event_queue import Agenda


def test_calls_happen_in_order_whenever_they_are_scheduled() -> None:
    agenda, random = Agenda(), Random(3)
    scheduled: list[tuple[float, int]] = []
    happened: list[tuple[float, int]] = []

    def schedule() -> None:
        seconds = random.choice(
            [0.0, 0.0, 0.25, 0.5, random.random(), 3.0 * random.random(), float(random.randint(0, 5))]
        )
        entry = (agenda.now + seconds, len(scheduled))
        scheduled.append(entry)
        agenda.after(seconds, happen, entry)

    def happen(entry: tuple[float, int]) -> None:
        assert agenda.now == entry[0]
        happened.append(entry)
        for _ in range(random.choice([0, 1, 1, 2])):
            if len(scheduled) < 3000:
                schedule()

    for _ in range(50):
        schedule()
    until_s = 0.0
    while len(happened) < len(scheduled):
        until_s += random.choice([0.1, 0.5, 1.0, 2.0])
        agenda.run(until_s, (lambda: False) if random.random() < 0.5 else None)
        assert agenda.now == until_s
        assert all(entry[0] <= until_s for entry in happened)
        assert len(happened) == sum(entry[0] <= until_s for entry in scheduled)
    assert happened == sorted(scheduled)
    assert agenda.done == len(scheduled) > 1000
