from __future__ import annotations

import asyncio
import sys
from itertools import repeat

import pytest

from learner.config import DistributedConfig
from learner.distributed.supervisor import WORKER, Restarts, is_worker, supervise, was_lost
from rollcast.runtime.errors import ConfigError, ProcessFailed, WaitTimedOut
from rollcast.runtime.process import EXIT_INTERRUPTED


class FixedJitter:
    def uniform(self, low: float, high: float) -> float:
        return 0.0


def config(**changes: object) -> DistributedConfig:
    values = {"processes": 2, "coordinator_address": "127.0.0.1:1", "restarts_per_hour": 2, "stop_timeout_s": 5.0}
    return DistributedConfig.model_validate(values | changes)


def command(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_only_a_loss_leads_to_another_start() -> None:
    assert was_lost(-9)
    assert was_lost(-6)
    assert was_lost(ProcessFailed.exit_code)
    assert was_lost(WaitTimedOut.exit_code)
    assert not was_lost(0)
    assert not was_lost(EXIT_INTERRUPTED)
    assert not was_lost(ConfigError.exit_code)


def test_so_many_starts_an_hour_and_no_more() -> None:
    restarts = Restarts(2, repeat(1.5))
    assert restarts.after(0, 0.0) is None
    assert [restarts.after(-9, now) for now in (0.0, 10.0, 20.0)] == [1.5, 1.5, None]
    assert restarts.after(-9, 3601.0) == 1.5, "the first is more than an hour ago"


def test_a_worker_knows_that_it_is_one() -> None:
    assert is_worker({WORKER: "1"})
    assert not is_worker({})


async def test_a_lost_worker_is_restarted_and_its_exit_status_returned(tmp_path: object) -> None:
    program = (
        "import os, pathlib, sys\n"
        f"assert os.environ['{WORKER}'] == '1'\n"
        f"lives = pathlib.Path({str(tmp_path)!r}) / 'lives'\n"
        "count = len(lives.read_text()) if lives.exists() else 0\n"
        "lives.write_text('x' * (count + 1))\n"
        "os.kill(os.getpid(), 9) if count == 0 else sys.exit(70 if count == 1 else 0)"
    )
    assert await supervise(config(), asyncio.Event(), command=command(program), random=FixedJitter()) == 0


async def test_restarts_end_after_repeated_losses() -> None:
    program = "import sys; sys.exit(70)"
    with pytest.raises(ProcessFailed, match="process 0 was lost 1 times in an hour"):
        await supervise(config(restarts_per_hour=0), asyncio.Event(), command=command(program), random=FixedJitter())


async def test_an_error_that_a_person_must_mend_is_passed_on() -> None:
    assert await supervise(config(), asyncio.Event(), command=command("import sys; sys.exit(64)")) == 64


@pytest.mark.parametrize(("program", "expected"), [("import time; time.sleep(60)", EXIT_INTERRUPTED)])
async def test_a_stop_request_stops_the_worker(program: str, expected: int) -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(supervise(config(), stop, command=command(program)))
    stop.set()
    assert await task == expected


async def test_one_that_does_not_stop_is_killed() -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    stop = asyncio.Event()
    stop.set()
    settings = config(stop_timeout_s=0.5)
    assert await supervise(settings, stop, command=command(program)) == EXIT_INTERRUPTED
