"""Handle signals, addresses to bind, and errors that end a process; the same for every role."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import ipaddress
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil

from rollcast.runtime.errors import PortInUse, RollcastError

EXIT_INTERRUPTED = 130
_GC_THRESHOLDS = (700, 10, 10)  # Python's own; the command line sets higher ones for its imports
# While thousands of members connect, almost all that is new stays: a scan of 50,000 such objects took up to 125 ms, and
# one of 25,000 up to 88 ms. A scan of everything takes 0.8 s with 10,000 sessions and finds next to nothing (25 to 90
# objects after 600 sessions had ended), so it comes about once a day.
_GC_THRESHOLDS_OF_SESSIONS = (2_500, 2, 600_000)
_YOUNG_GARBAGE_S = 0.15
_SAME_SIGNAL_S = 0.5
_PR_SET_PDEATHSIG = 1  # prctl(2)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # mallopt(3)
# SQLite takes 88 KiB for each table that it needs within a statement: with blocks of 64 KiB mapped by themselves, the
# ledger's work for an upload had 67 page faults and took 0.46 ms of processor time, without them 0.25 ms.
_LARGE_BLOCK_BYTES = 512 << 10
_FREE_ON_TOP_BYTES = 4 << 20  # that a heap keeps; with 128 KiB, glibc's default, 12 page faults an upload are left
_ARENAS = 2


def stop_on_signals(loop: asyncio.AbstractEventLoop, *, on_second: Callable[[], None] = lambda: None) -> asyncio.Event:
    """Return an event that the first SIGINT or SIGTERM sets; a second one ends this process at once after on_second().

    A second signal within half a second counts as the first: timeout(1) and some service managers signal both the
    process and its group.
    """
    stop = asyncio.Event()
    first_at_s = 0.0

    def on_signal() -> None:
        nonlocal first_at_s
        if not stop.is_set():
            first_at_s = loop.time()
            stop.set()
        elif loop.time() - first_at_s > _SAME_SIGNAL_S:
            on_second()
            os._exit(EXIT_INTERRUPTED)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return stop


def run_process(main: Callable[[asyncio.Event], Coroutine[Any, Any, int]]) -> int:
    """Run ``main(stop)`` and return its exit status; a RollcastError is printed to stderr and determines the status."""

    async def guarded() -> int:
        return await main(stop_on_signals(asyncio.get_running_loop()))

    # Imported modules never become garbage: the collector need not scan them again and again. What compiling and
    # loading them took in between does: 13 MiB where jax is among them.
    return_free_memory()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        return asyncio.run(guarded())
    except RollcastError as error:
        with contextlib.suppress(OSError):  # stderr may be a file on the disk that is full
            print(error, file=sys.stderr)
        return error.exit_code


def is_loopback(host: str) -> bool:
    """Return whether a server bound to ``host`` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listening(host: str, port: int) -> dict[str, Any]:
    """Return the arguments of ``loop.create_server`` that say where to listen; "::" takes IPv6 and IPv4 connections.

    Raises:
        OSError: the address cannot be bound.
    """
    if host == "::" and socket.has_dualstack_ipv6():  # asyncio takes IPv6 alone where it binds "::" itself
        return {"sock": socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)}
    return {"host": host, "port": port}


def bind_error(address: str, error: OSError, *, setting: str) -> PortInUse:
    """Return the error to raise when ``address`` cannot be bound.

    Args:
        address: HOST:PORT, or the path of a socket.
        setting: the configuration key that chose it.
    """
    port = address.rpartition(":")[2]
    if error.errno != errno.EADDRINUSE:
        return PortInUse(f"cannot listen on {address}", cause=str(error), fix=f"change {setting}")
    if not port.isdigit():
        return PortInUse(f"cannot listen on {address}", cause="another process listens there", fix=f"change {setting}")
    fix = f"stop it, or pass --set {setting}=0 to let the system choose a port"
    return PortInUse(f"port {port} is in use by {_listener_on(int(port))}", fix=fix)


def _listener_on(port: int) -> str:
    """Return "process 4711 (rollcast up)", or "another process" for one of another user, which the system hides."""
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.pid and one.laddr and one.laddr.port == port:
                return f"process {one.pid} ({_command_name(psutil.Process(one.pid))})"
    return "another process"


def _command_name(process: psutil.Process) -> str:
    """Return "rollcast up" for our own commands, else the program's name. Arguments may be secret: never shown."""
    words = process.cmdline()
    for number, word in enumerate(words[:-1]):
        if word == "rollcast.cli.main" or Path(word).name == "rollcast":
            return f"rollcast {words[number + 1]}"
    return process.name()


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent process dies, so that nothing is left behind (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent died before the request took effect
        os.kill(os.getpid(), signal.SIGTERM)


def processor_time_s(pid: int) -> float | None:
    """Return the processor time in seconds that a process and its living children used; None if it is not known."""
    try:
        process = psutil.Process(pid)
        times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    except psutil.Error:
        return None
    return sum(one.user + one.system for one in times)


def collect_garbage_in_small_steps() -> None:
    """Set the collector up for a process whose sessions and rollouts live long.

    With Python's thresholds it would scan thousands of them all the time.
    """
    gc.set_threshold(*_GC_THRESHOLDS_OF_SESSIONS)


async def collect_young_garbage(
    collect: Callable[[int], object] = gc.collect, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Collect what is new since the last turn, until cancelled: the thresholds alone let it pile up.

    They count new objects less deleted ones. Where each message replaces what its sender reported before, that stays
    near 0: with 1,000 heartbeats a second, a collection then came every 3 s and scanned the reports of all of them,
    which blocked the loop for up to 121 ms. Both young generations are scanned together: most of what is new belongs to
    sessions that wait for seconds, and would otherwise be scanned twice.
    """
    while True:
        await sleep(_YOUNG_GARBAGE_S)
        collect(1)


def return_free_memory() -> bool:
    """Return the memory that is free now to the system; returns False if libc cannot, or has none to return."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return malloc_trim is not None and bool(malloc_trim(0))


def return_large_blocks() -> bool:
    """Return freed large blocks of memory to the system from now on; returns False if libc has no such setting.

    Large are those of 512 KiB or more. By default, glibc maps large blocks by themselves only until the first of them
    is freed; later ones come from the heap, which keeps what lies below its highest block, once for each thread that
    allocates.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {
        _M_MMAP_THRESHOLD: _LARGE_BLOCK_BYTES,
        _M_TRIM_THRESHOLD: _FREE_ON_TOP_BYTES,
        _M_ARENA_MAX: _ARENAS,
    }
    return all(mallopt(name, value) for name, value in settings.items())


def raise_open_files_limit() -> int:
    """Let this process open as many files and sockets as the system allows it; return that number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems name a limit that they do not allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft
