from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time

import pytest

from rollcast.runtime.process import bind_error, is_loopback

SCRIPT = """
import asyncio, sys
from rollcast.runtime.errors import StoreError
from rollcast.runtime.process import run_process

async def main(stop):
    if sys.argv[1] == "error":
        raise StoreError("the ledger is gone", fix="find it")
    print("ready", flush=True)
    await stop.wait()
    if sys.argv[1] == "stuck":
        print("stopping", flush=True)
        await asyncio.Event().wait()
    return 3

sys.exit(run_process(main))
"""


def start(mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_stops_in_order(number: signal.Signals) -> None:
    with start("orderly") as process:
        assert read_line(process) == "ready"
        process.send_signal(number)
        assert process.wait(10) == 3


def test_second_signal_kills() -> None:
    with start("stuck") as process:
        assert read_line(process) == "ready"
        process.send_signal(signal.SIGINT)
        assert read_line(process) == "stopping"
        process.send_signal(signal.SIGINT)  # at once: still the first request
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.7)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_errors_leave_as_text_and_status() -> None:
    with start("error") as process:
        _, text = process.communicate(timeout=10)
        assert process.returncode == 74
        assert text == "RC401: the ledger is gone\n  fix:   find it\n"


CHILD = """
import time
from rollcast.runtime.process import die_with_parent

die_with_parent()
print(1, flush=True)
time.sleep(60)
"""

PARENT = f"""
import subprocess, sys

child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_children_die_with_their_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        child_pid = int(read_line(process))
        process.kill()
        process.wait(10)
        end = time.monotonic() + 10
        while _alive(child_pid):
            assert time.monotonic() < end, "the child outlived its parent"
            time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.1", False), ("host", False)],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_bind_error_names_the_setting() -> None:
    error = bind_error("127.0.0.1:7401", OSError(errno.EADDRINUSE, "in use"), setting="serve.http_port")
    assert "another process listens there" in str(error)
    assert "serve.http_port" in str(error)
