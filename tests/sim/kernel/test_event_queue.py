from __future__ import annotations

from rollcast.sim.kernel.event_queue import Agenda


def test_things_of_one_moment_happen_in_the_order_in_which_they_were_put_in() -> None:
    agenda, seen = Agenda(), list[tuple[float, str]]()

    def see(name: str) -> None:
        seen.append((agenda.now, name))

    for seconds, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        agenda.after(seconds, see, name)
    assert not agenda.run(1.5)
    assert seen == [(1.0, "first"), (1.0, "second")]
    assert agenda.now == 1.5
    agenda.run(3.0)
    assert seen[-1] == (2.0, "late")
    assert agenda.done == 3


def test_it_stops_when_what_was_waited_for_has_happened() -> None:
    agenda, seen = Agenda(), list[int]()
    for number in range(5):
        agenda.after(float(number), seen.append, number)
    assert agenda.run(10.0, lambda: len(seen) == 2)
    assert agenda.now == 1.0
