from __future__ import annotations

from rollcast.sim.kernel.event_queue import Agenda
from rollcast.sim.kernel.process import Latch, Process, Script


def started() -> tuple[Agenda, Process]:
    agenda = Agenda()
    process = Process("one", agenda)
    process.start()
    return agenda, process


def test_what_was_put_off_dies_with_its_life() -> None:
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


def test_a_supervisor_hears_of_the_end() -> None:
    _, process = started()
    ended: list[str] = []
    process.on_end = lambda one: ended.append(one.name)
    process.kill()
    process.kill()
    assert ended == ["one"]
