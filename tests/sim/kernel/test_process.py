"""Test processes in virtual time: the queue of events, its order and randomness, kills and restarts."""

from __future__ import annotations

from rollcast.sim.kernel.event_queue import Agenda
from rollcast.sim.kernel.process import Latch, Process, Script
from rollcast.sim.kernel.rng import Chance


def started() -> tuple[Agenda, Process]:
    agenda = Agenda()
    process = Process("one", agenda)
    process.start()
    return agenda, process


def test_calls_are_made_by_time_and_at_the_same_time_in_order_of_scheduling() -> None:
    agenda, seen = Agenda(), list[str]()
    for seconds, name in ((70.2, "f"), (0.5, "b"), (2.0, "d"), (0.5, "c"), (2.0, "e"), (0.25, "a")):
        agenda.after(seconds, seen.append, name)
    agenda.after(0.5, lambda: agenda.after(0.0, seen.append, "now"))
    agenda.after(0.5, lambda: agenda.after(1.5, seen.append, "at 2 s"))
    agenda.run(1.9)
    assert seen == ["a", "b", "c", "now"]
    assert agenda.now == 1.9
    agenda.after(0.05, seen.append, "at 1.95 s")
    assert not agenda.run(70.1, lambda: False)
    assert seen[4:] == ["at 1.95 s", "d", "e", "at 2 s"]
    assert agenda.run(100.0, lambda: "f" in seen)
    assert agenda.now == 70.2


def test_a_scheduled_call_dies_with_its_life() -> None:
    agenda, process = started()
    seen: list[str] = []
    process.later(1.0, seen.append, "first life")
    process.kill()
    process.start()
    process.later(1.0, seen.append, "second life")
    agenda.run(2.0)
    assert seen == ["second life"]


def test_a_frozen_process_catches_up_in_order() -> None:
    agenda, process = started()
    seen: list[int] = []
    process.freeze()
    for number in (1, 2):
        process.later(float(number), seen.append, number)
    agenda.run(5.0)
    assert seen == []
    process.thaw()
    assert seen == [1, 2]


def test_a_script_waits_for_what_it_yields() -> None:
    agenda, process = started()
    latch, seen = Latch(), list[float]()

    def script() -> Script:
        yield process.sleep(1.5)
        seen.append(agenda.now)
        yield latch.wait()
        seen.append(agenda.now)
        yield latch.wait()  # set already
        seen.append(agenda.now)

    process.follow(script())
    agenda.after(4.0, latch.set)
    agenda.run(10.0)
    assert seen == [1.5, 4.0, 4.0]


def test_a_supervisor_is_notified_of_the_end() -> None:
    _, process = started()
    ended: list[str] = []
    process.on_end = lambda one: ended.append(one.name)
    process.kill()
    process.kill()
    assert ended == ["one"]


def test_calls_at_one_moment_happen_in_the_order_of_scheduling() -> None:
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


def test_a_run_stops_once_its_condition_holds() -> None:
    agenda, seen = Agenda(), list[int]()
    for number in range(5):
        agenda.after(float(number), seen.append, number)
    assert agenda.run(10.0, lambda: len(seen) == 2)
    assert agenda.now == 1.0


def test_a_new_concern_changes_no_other_stream() -> None:
    alone, beside = Chance(7), Chance(7)
    beside.of("weather").random()
    assert [alone.of("faults").random() for _ in range(3)] == [beside.of("faults").random() for _ in range(3)]
    assert Chance(8).of("faults").random() != Chance(7).of("faults").random()
    assert alone.of("faults") is alone.of("faults")
