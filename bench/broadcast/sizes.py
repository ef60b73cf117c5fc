"""Publish versions of a given size through real processes on loopback: peak memory of each role, and stage timings.

A learner that freezes its weights into a file, an origin and peers without an engine run as in a real run, with TLS,
hashes and the store, on the disk of the temporary folder. The first version is a keyframe; each further one changes 1 %
of the weights and is published as a delta too.

``ROLE_beyond_state_mib`` is the most resident memory of the process beyond one state: interpreter and libraries, all
its own memory, and what it has mapped of files beyond the bytes of one state (/proc/PID/status, sampled). Seconds of
stages are the learner's; ``origin_s`` and ``held_s`` count from the beginning of the freeze to the origin's durable
copy and to the last peer's verified one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.broadcast.broadcast import ended_by_sigterm
from bench.machine import Outcome, alone
from bench.systems.base import Case
from bench.systems.rollcast_daemons import Daemons
from bench.wan.machines import Loopback
from bench.wan.network import Sockets
from bench.wan.scenarios import Node
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut

_MIB = 1 << 20
_GIB = 1 << 30
_SAMPLE_S = 0.02
_POLL_S = 0.02
_SETTLE_S = 1.0
_SETTINGS = (
    "learner.publish.deltas=true",
    "learner.publish.squash_versions=0",
    "learner.publish.newest_in_memory_only=true",
    "origin.link.relay_on_arrival=true",
)
_ROLES = ("learner", "origin", "peer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gib", type=float, default=0.25, help="size of the state")
    parser.add_argument("--peers", type=int, default=2, help="number of peers")
    parser.add_argument("--steps", type=int, default=1, help="versions after the first one, each with a delta")
    parser.add_argument("--limit-s", type=float, default=600.0, help="seconds after which a version has failed")


def run(arguments: argparse.Namespace) -> Outcome:
    """Publish the versions and measure.

    Raises:
        RollcastError: a daemon ended, or a version did not arrive in time.
    """
    nodes = (Node(0.0, 0.0, 0.0),) * (1 + arguments.peers)
    size_bytes = int(arguments.gib * _GIB)
    with ended_by_sigterm(), alone(), tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        case = Case(nodes, size_bytes, Sockets(), Path(folder), arguments.limit_s, settings=_SETTINGS)
        with Loopback(nodes, 1 + os.getpid() % 250) as machines:
            daemons = Daemons(machines, case)
            try:
                daemons.start()
                figures = _measure(daemons, case, arguments.steps)
            except ProcessFailed as error:
                raise ProcessFailed(error.what, cause=daemons.last_words() or error.cause, fix=error.fix) from None
            finally:
                daemons.stop()
    return Outcome({name: getattr(arguments, name) for name in ("gib", "peers", "steps")}, figures)


def _measure(daemons: Daemons, case: Case, steps: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    pids = {name: pid for name, pid in daemons.process_ids().items() if name != "coordinator"}
    with MemoryPeaks(pids, case.size_bytes) as peaks:
        for version in range(1 + steps):
            time.sleep(_SETTLE_S)
            found = version_figures(*_publish(daemons, case, version))
            kind = "step" if version else "keyframe"
            print(kind, {name: round(value, 3) for name, value in found.items()}, file=sys.stderr)
            figures |= {f"{kind}_{name}": value for name, value in found.items()}
            figures |= {f"{kind}_{name}": value for name, value in peaks.take().items()}
    return figures


def _publish(daemons: Daemons, case: Case, version: int) -> tuple[dict[str, Any], float]:
    """Publish one version; returns the learner's answer, and when the last peer held it as Unix time in seconds."""
    daemons.send_command("file-step" if version else "file")
    answer = daemons.next_answer("origin_holds", case.limit_s)
    daemons.send_command("announce")
    held_at, end_s = 0.0, time.monotonic() + case.limit_s
    for number in case.receivers:
        while (at := daemons.log(f"peer-{number}").last("version held", version)) is None:
            if time.monotonic() > end_s:
                raise WaitTimedOut(f"waited {case.limit_s:.0f} s for peer {number} to hold version {version}")
            time.sleep(_POLL_S)
        held_at = max(held_at, at)
    daemons.next_answer("peers_hold", case.limit_s)
    return answer, held_at


def version_figures(answer: Mapping[str, Any], held_at: float) -> dict[str, float]:
    """Return the seconds of a version's stages, and of its publication / its slowest stage."""
    stages = {f"{name}_s": float(value) for name, value in answer["stages_s"].items()}
    publish_s = float(answer["seconds"])
    return stages | {
        "origin_s": publish_s,
        "held_s": held_at - answer["started_at"],
        "publish_stage_ratio": publish_s / max(stages.values()),
        "mib": answer["encoding_bytes"][-1] / _MIB,
    }


class MemoryPeaks:
    """Samples the memory of processes in a thread of its own; use it as a context manager."""

    def __init__(self, pids: Mapping[str, int], state_bytes: int) -> None:
        self._pids = dict(pids)
        self._state_bytes = state_bytes
        self._most: dict[str, int] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> MemoryPeaks:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def take(self) -> dict[str, float]:
        """Return the peak of each role beyond one state in MiB since the last call; of the peers, the highest."""
        with self._lock:
            most, self._most = self._most, {}
        return {
            f"{role}_beyond_state_mib": max(value for name, value in most.items() if name.startswith(role)) / _MIB
            for role in _ROLES
            if any(name.startswith(role) for name in most)
        }

    def _sample(self) -> None:
        while not self._end.wait(_SAMPLE_S):
            for name, pid in self._pids.items():
                with contextlib.suppress(OSError):  # it has ended
                    used = beyond_state_bytes(Path(f"/proc/{pid}/status").read_text(), self._state_bytes)
                    with self._lock:
                        self._most[name] = max(used, self._most.get(name, 0))


def beyond_state_bytes(status: str, state_bytes: int) -> int:
    """Return a process's resident memory less what it maps of files, up to the bytes of one state (proc(5), status)."""
    values = {key: 1024 * int(rest.split()[0]) for key, _, rest in _fields(status) if key.startswith("Rss")}
    mapped = values["RssFile"] + values["RssShmem"]
    return values["RssAnon"] + max(0, mapped - state_bytes)


def _fields(status: str) -> list[tuple[str, str, str]]:
    return [line.partition(":") for line in status.splitlines()]
