from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

from rollcast.runtime.process import (
    bind_error,
    collect_garbage_in_small_steps,
    collect_young_garbage,
    is_loopback,
    listening,
    raise_open_files_limit,
)

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


@pytest.mark.parametrize(
    ("host", "dialled"), [("127.0.0.1", {"127.0.0.1"}), ("::1", {"::1"}), ("::", {"127.0.0.1", "::1"})]
)
async def test_the_unspecified_ipv6_address_takes_ipv4_connections_too(host: str, dialled: set[str]) -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, **listening(host, 0))
    port, reached = server.sockets[0].getsockname()[1], set()
    for one in ("127.0.0.1", "::1"):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(one, port)
            reached.add(one)
            writer.close()
    server.close()
    assert reached == dialled


def test_a_port_in_use_names_its_process_and_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        error = bind_error(f"127.0.0.1:{port}", OSError(errno.EADDRINUSE, "in use"), setting="serve.http_port")
    assert error.what.startswith(f"port {port} is in use by process {os.getpid()} (")
    assert error.fix == "stop it, or pass --set serve.http_port=0 to let the system choose a port"


def test_the_process_of_a_free_port_is_not_made_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = bind_error(f"127.0.0.1:{port}", OSError(errno.EADDRINUSE, "in use"), setting="serve.http_port")
    assert error.what == f"port {port} is in use by another process"


def test_our_own_commands_are_named_without_their_arguments() -> None:
    code = "import sys, socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    words = [sys.executable, "-c", f"{code}; sys.stdin.read()", "rollcast", "up", "--token=secret"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        port = read_line(process)
        error = bind_error(f"[::]:{port}", OSError(errno.EADDRINUSE, "in use"), setting="link.port")
    assert error.what == f"port {port} is in use by process {process.pid} (rollcast up)"


def test_other_reasons_why_an_address_cannot_be_bound_are_the_systems() -> None:
    error = bind_error("10.9.9.9:1", OSError(errno.EADDRNOTAVAIL, "cannot assign it"), setting="serve.http_port")
    assert "cannot listen on 10.9.9.9:1" in error.what
    assert "cannot assign it" in error.cause
    assert "serve.http_port" in error.fix
    taken = bind_error("/run/donor.sock", OSError(errno.EADDRINUSE, "in use"), setting="state_folder")
    assert (taken.cause, taken.fix) == ("another process listens there", "change state_folder")


def test_a_process_may_open_as_many_files_as_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        assert raise_open_files_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


MAPPED_SCRIPT = """
import ctypes, sys
from rollcast.runtime.process import return_large_blocks

class Usage(ctypes.Structure):  # mallinfo2(3)
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "o", "s", "h", "mapped", "us", "fs", "u", "f", "k")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Usage
if sys.argv[1] == "limited":
    assert return_large_blocks()
one = bytearray(8 << 20)
del one  # after this glibc would take blocks of up to 8 MiB from the heap
before = libc.mallinfo2().mapped
one = bytearray(1 << 20)
print(libc.mallinfo2().mapped - before >= 1 << 20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this libc does not report its memory")
@pytest.mark.parametrize(("mode", "mapped"), [("limited", "True"), ("as it is", "False")])
def test_large_blocks_are_mapped_by_themselves(mode: str, mapped: str) -> None:
    script = [sys.executable, "-c", MAPPED_SCRIPT, mode]
    assert subprocess.run(script, capture_output=True, text=True, check=True, timeout=60).stdout.strip() == mapped


FREED_SCRIPT = """
import psutil
from rollcast.runtime.process import return_free_memory

blocks = [bytearray(1000) for _ in range(20_000)]
top = bytearray(1000)  # what lies below it stays with the heap
blocks.clear()
before = psutil.Process().memory_info().rss
return_free_memory()
print(before - psutil.Process().memory_info().rss > 10 << 20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this libc keeps what is free")
def test_free_memory_is_returned() -> None:
    script = [sys.executable, "-c", FREED_SCRIPT]
    assert subprocess.run(script, capture_output=True, text=True, check=True, timeout=60).stdout.strip() == "True"


def test_garbage_of_long_sessions_is_collected_in_small_steps() -> None:
    before = gc.get_threshold()
    try:
        collect_garbage_in_small_steps()
        assert gc.get_threshold()[0] < 25_000, "a step that scans more blocks a loop for too long"
        assert gc.get_threshold()[2] > 10, "old objects are scanned less often than Python does"
    finally:
        gc.set_threshold(*before)


class _Report:
    """What a peer reports, which replaces its report before."""


async def test_the_young_are_collected_though_as_many_old_objects_go() -> None:
    before, reports = gc.get_threshold(), [_Report() for _ in range(3_000)]
    turns = list[int]()

    async def replaced(seconds: float) -> None:
        if len(turns) == 3:
            raise asyncio.CancelledError
        for number in range(len(reports)):
            reports[number] = _Report()

    def collect(generation: int) -> None:
        turns.append(generation)
        gc.collect(generation)
        assert not any(isinstance(one, _Report) for one in gc.get_objects(0) + gc.get_objects(1))

    try:
        collect_garbage_in_small_steps()
        gc.collect()
        for _ in range(10):
            await replaced(0.0)
        piled_up = sum(isinstance(one, _Report) for one in gc.get_objects(0))
        assert piled_up == 3_000, "Python collects by itself here"
        with pytest.raises(asyncio.CancelledError):
            await collect_young_garbage(collect, replaced)
    finally:
        gc.set_threshold(*before)
    assert turns == [1, 1, 1]
