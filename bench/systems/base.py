"""Define the input and output of every system, and the lines in which node programs report."""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from bench.wan.meter import Cost
from bench.wan.network import Sockets
from bench.wan.scenarios import Node, Trouble
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut

#: Root of the source tree, from which node programs import.
ROOT = Path(__file__).parents[2]
#: Names a Python interpreter that has the packages of other systems; they are no dependencies of this project.
PYTHON_VARIABLE = "ROLLCAST_BENCH_PYTHON"
_IMPORT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """A broadcast to be measured repeatedly."""

    nodes: tuple[Node, ...]
    size_bytes: int
    sockets: Sockets
    folder: Path  # empty; in memory where possible, because nine nodes share one disk
    limit_s: float  # a broadcast that takes longer has failed
    bound_s: float = 0.0
    trouble: Trouble | None = None
    emulated: bool = True  # whether the nodes' links are emulated; otherwise it is the loopback interface
    settle_s: float = 3.0  # wait before each version, for heartbeats that report rates and plans made from them
    settings: tuple[str, ...] = ()  # role.section.key=value, which override the daemons' configuration

    @property
    def receivers(self) -> range:
        """Return the numbers of the nodes that receive."""
        return range(1, len(self.nodes))


@dataclass(frozen=True, slots=True)
class Broadcast:
    """One measured broadcast.

    Args:
        seconds: seconds until each receiver held a verified copy, by its number; for one that joined, from its joining.
        reported_s: duration that the system itself reports, if it does.
        troubled: whether the case's trouble happened in it.
        origin_s: seconds from the snapshot to the origin's durable copy, before the measured ones, if known.
        encoding_bytes: bytes of the version's encodings, the keyframe's first, if known.
        from_freeze_s: seconds from the beginning of the learner's freeze to the last verified copy, if known.
        written_bytes: bytes that each process wrote to its versions' files, by its name, if known.
    """

    seconds: Mapping[int, float]
    cost: Cost
    reported_s: float | None = None
    troubled: bool = False
    origin_s: float = 0.0
    encoding_bytes: tuple[int, ...] = ()
    from_freeze_s: float = 0.0
    written_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def last_s(self) -> float:
        """Return the seconds until the last receiver had its copy."""
        return max(self.seconds.values())


class System(Protocol):
    """The functions that each module of this package has."""

    def missing(self) -> str:
        """Return what is not installed; empty when nothing is missing."""

    def broadcasts(self, case: Case) -> Iterator[Broadcast]:
        """Yield one measured broadcast after another."""


class Lines:
    """Lines that processes print on stdout in order of arrival, each with the number of its process."""

    def __init__(self) -> None:
        self._lines: queue.Queue[tuple[int, str]] = queue.Queue()

    def follow(self, number: int, process: subprocess.Popen[Any]) -> None:
        """Read the lines that a process prints in a thread; its end counts as an empty line."""
        stream: IO[str] | None = process.stdout
        assert stream is not None
        threading.Thread(target=self._read, args=(number, stream), daemon=True).start()

    def next(self, waiting_for: str, timeout_s: float) -> tuple[int, str]:
        """Return the next line and the number of its process.

        Raises:
            WaitTimedOut: no line came in time.
            ProcessFailed: a process ended.
        """
        try:
            number, line = self._lines.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            raise WaitTimedOut(f"waited {timeout_s:.0f} s for {waiting_for}") from None
        if not line:
            raise ProcessFailed(f"node {number} ended while we waited for {waiting_for}", cause="see its log")
        return number, line

    def count(self, word: str, wanted: int, timeout_s: float) -> dict[int, str]:
        """Wait until ``wanted`` nodes have printed a line that begins with ``word``; returns the rest of each by node.

        Raises:
            WaitTimedOut, ProcessFailed: see next.
        """
        found: dict[int, str] = {}
        end = time.monotonic() + timeout_s
        while len(found) < wanted:
            what = f"{wanted} nodes to print {word!r}, after {sorted(found)}"
            number, line = self.next(what, end - time.monotonic())
            first, _, rest = line.partition(" ")
            if first == word:
                found[number] = rest
        return found

    def _read(self, number: int, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.put((number, line.rstrip("\n")))
        self._lines.put((number, ""))


def write_payload(path: Path, size_bytes: int) -> str:
    """Write incompressible bytes, and return their SHA-256 in hex."""
    data = os.urandom(size_bytes)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def prepare_nodes(case: Case) -> tuple[list[Path], Path, str]:
    """Make a folder for each node, empty but for the payload in the source's.

    Returns the folders, the payload's path, and its SHA-256 in hex.
    """
    folders = [case.folder / f"node-{number}" for number in range(len(case.nodes))]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    payload = folders[0] / "payload"
    return folders, payload, write_payload(payload, case.size_bytes)


def check_copies(copies: Mapping[int, Path], digest: str) -> None:
    """Check that every copy has the bytes that were sent.

    Raises:
        ProcessFailed: one is missing or differs.
    """
    for number, path in copies.items():
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise ProcessFailed(f"node {number} does not hold the bytes that were sent", cause=f"file {path.name}")


def python_with() -> str:
    """Return the interpreter for other systems' packages."""
    return os.environ.get(PYTHON_VARIABLE) or sys.executable


def lacks_module(name: str) -> str:
    """Return what to do for ``python_with()`` to have a module; empty when it has."""
    command = [python_with(), "-c", f"import {name}"]
    done = subprocess.run(command, capture_output=True, timeout=_IMPORT_TIMEOUT_S, check=False)
    if done.returncode == 0:
        return ""
    return f"pip install {name}, here or in an environment whose interpreter {PYTHON_VARIABLE} names"
