"""Run processes as if each node were a machine of its own, wait for them, and count their processor time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psutil

from bench.wan.scenarios import Node

_REAP_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Counters:
    """The emulator's counters: bytes and drops since its start, lateness since the previous reading."""

    sent_bytes: tuple[int, ...]  # through each node's uplink, IP headers included
    received_bytes: tuple[int, ...]
    drops: int = 0  # packets dropped by full queues
    lost: int = 0  # packets lost at random
    nat_drops: int = 0  # packets that routers did not let in
    late_max_ms: float = 0.0


class Machines:
    """The processes of some nodes; subclasses choose where ``spawn`` runs them.

    Attributes:
        addresses: the address under which other nodes see each node.
        inside: each node's own address, which differs behind a router with address translation.
    """

    addresses: tuple[str, ...]
    inside: tuple[str, ...]

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        self._running: dict[int, subprocess.Popen[Any]] = {}
        self._reaped_cpu_s = 0.0

    def spawn(self, node: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command at a node."""
        raise NotImplementedError

    def counters(self) -> Counters:
        """Return what an emulator has counted on the nodes' links."""
        raise NotImplementedError

    def emulator_cpu_s(self) -> float:
        """Return the processor seconds that an emulator has used."""
        raise NotImplementedError

    def reap(self, process: subprocess.Popen[Any], send: signal.Signals | None = None, grace_s: float = 5.0) -> int:
        """Send ``send`` if given, wait for the process and kill it after ``grace_s``; returns its exit status.

        Its processor time, and that of its children that it waited for, stays in ``cpu_s``.
        """
        if process.pid not in self._running:
            return int(process.returncode)
        if send is not None:
            os.kill(process.pid, send)
        end = time.monotonic() + grace_s
        while not self.has_ended(process):
            if time.monotonic() > end:
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(_REAP_POLL_S)
        return int(process.returncode)

    def has_ended(self, process: subprocess.Popen[Any]) -> bool:
        """Whether the process has ended; if so it is reaped and its ``returncode`` is set."""
        if process.pid not in self._running:
            return True
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid == 0:
            return False
        process.returncode = os.waitstatus_to_exitcode(status)
        self._reaped_cpu_s += usage.ru_utime + usage.ru_stime
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # input that the process never read
                process.stdin.close()
        del self._running[pid]
        return True

    def kill_all(self) -> None:
        """Kill and reap every process that still runs."""
        for process in list(self._running.values()):
            self.reap(process, signal.SIGKILL)

    def cpu_s(self) -> float:
        """Return the processor seconds of all spawned processes and their children so far."""
        return self._reaped_cpu_s + sum(family_cpu_s(pid) for pid in self._running)

    def _start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        process = subprocess.Popen(command, **options)
        self._running[process.pid] = process
        return process


class Loopback(Machines):
    """This machine itself: each node has an address of its own on the loopback interface. Use as a context manager.

    Args:
        network: the second byte of the addresses, so that two of these do not meet.
    """

    def __init__(self, nodes: Sequence[Node], network: int) -> None:
        super().__init__(nodes)
        self.addresses = self.inside = tuple(f"127.{network}.0.{number + 1}" for number in range(len(nodes)))

    def __enter__(self) -> Loopback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill_all()

    def counters(self) -> Counters:
        """Return zeros: nothing counts the bytes of one node on the loopback interface."""
        return Counters((0,) * len(self.nodes), (0,) * len(self.nodes))

    def emulator_cpu_s(self) -> float:
        """Return 0: there is no emulator."""
        return 0.0

    def spawn(self, node: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command on this machine; the node says only whose it is."""
        return self._start(command, **options)


def family_cpu_s(pid: int) -> float:
    """Return the processor seconds of a process, of the children it waited for and of its living descendants."""
    seconds = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
    return seconds
