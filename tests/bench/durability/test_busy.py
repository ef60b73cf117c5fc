"""Test that the benchmark's spinning processes end with it."""

from __future__ import annotations

import psutil

from bench.durability.busy import spinning


def test_spinning_processes_end_with_the_run() -> None:
    with spinning(2) as spinners:
        assert all(psutil.Process(one.pid).is_running() for one in spinners)
    assert [one.poll() for one in spinners] == [-9, -9]
