"""Test for how long a starting process is waited for."""

from __future__ import annotations

import os
from pathlib import Path

from rollcast.runtime.process import processor_time_s
from rollcast.runtime.start_deadline import StartDeadline, StartReport


def test_a_slow_machine_takes_its_time() -> None:
    deadline = StartDeadline(60.0, now_s=1000.0)
    for second in range(0, 300, 5):
        assert deadline.passed(1000.0 + second, second / 25.0) == ""  # a load of 25 on one processor


def test_a_start_that_works_without_end_is_not_waited_for() -> None:
    deadline = StartDeadline(60.0, now_s=0.0)
    assert deadline.passed(59.0, 59.0) == ""
    assert deadline.passed(61.0, 60.5) == "it used 60 s of processor time in 61 s"


def test_a_start_that_stands_still_is_not_waited_for() -> None:
    deadline = StartDeadline(60.0, now_s=0.0)
    assert deadline.passed(60.0, 8.0) == ""
    assert deadline.passed(119.0, 8.1) == ""
    assert deadline.passed(120.0, 8.1) == "it used 0.10 s of processor time within the last 60 s"


def test_a_start_that_crawls_is_not_waited_for_for_ever() -> None:
    deadline = StartDeadline(60.0, now_s=0.0)
    why = [deadline.passed(float(second), second / 30.0) for second in range(0, 1201, 30)]
    assert why[-1] == "it used 40.0 s of processor time in 1200 s, the most that is waited"
    assert not any(why[:-1])


def test_without_processor_times_the_clock_decides() -> None:
    deadline = StartDeadline(60.0, now_s=0.0)
    assert deadline.passed(59.0, None) == ""
    assert deadline.passed(60.0, None) == "it took 60 s"


def test_the_processor_time_of_a_process() -> None:
    assert (processor_time_s(os.getpid()) or 0.0) > 0.0
    assert processor_time_s(2**22 + 1) is None


def test_a_start_that_reports_what_it_does_begins_anew() -> None:
    deadline = StartDeadline(60.0, now_s=0.0)
    assert deadline.passed(59.0, 59.0) == ""
    deadline.restart(600.0, 590.0)
    assert deadline.passed(655.0, 640.0) == ""
    assert deadline.passed(700.0, 651.0) == "it used 61 s of processor time in 100 s"


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "starting.json"
    assert StartReport.read(path) is None
    StartReport.write(path, "loading the task")
    report = StartReport.read(path)
    assert report is not None
    assert report.doing == "loading the task"
    os.utime(path, ns=(1, 1))
    assert StartReport.read(path) == StartReport("loading the task", 1) != report
    for damaged in ("{", "[]", "{}"):
        path.write_text(damaged)
        assert StartReport.read(path) is None
