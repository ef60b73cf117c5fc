"""Run tests at another time of the wall clock, as a pytest plugin: `-p tests.shifted_clock --clock 2027-03-01T01:00`.

`make test-shifted` does so for the tests that judge or show times, at moments at which calendars are hard. The clock
goes on from there; monotonic clocks are not shifted, nor are other processes. Certificates are issued by the machine's
clock all the same, because OpenSSL judges them by that one. A browser has its own clock, so pages are tested with the
clock handed in (tests/peer/donor/page/test_page.py).
"""

from __future__ import annotations

import importlib
from datetime import datetime, tzinfo

import pytest

BY_THE_MACHINES_CLOCK = ("rollcast.wire.identity.run_ca", "rollcast.wire.identity.tls")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--clock", type=datetime.fromisoformat, help="when the tests begin, in local time")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Shift the clock before any test module is imported."""
    at: datetime | None = config.getoption("clock")
    if at is None:
        return
    time_machine = importlib.import_module("time_machine")  # make test-shifted installs it

    class MachineTime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            found: datetime = time_machine.escape_hatch.datetime.datetime.now(tz)
            return found

    for module in BY_THE_MACHINES_CLOCK:
        importlib.import_module(module).__dict__["datetime"] = MachineTime
    traveller = time_machine.travel(at.astimezone(), tick=True)
    traveller.start()
    config.add_cleanup(traveller.stop)
