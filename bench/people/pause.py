"""Pause a peer of a real run while it generates, and watch its threads and its sockets from outside."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import runs
from rollcast.runtime.errors import RollcastError
from rollcast.wire.donor.control_socket import request

PEER = "peer-1"
_SAMPLE_S = 0.1
_AFTER_S = 1.0  # a peer must be quiet this long after the command
_WINDOW_S = 1.0
_CPU_SHARE_MAX = 0.01
_HEARTBEAT_BYTES_MAX = 4096  # per window, both ways: heartbeats with the overhead of TLS and HTTP/2
_SS_DEADLINE_S = 5.0
_COUNTED = re.compile(r"\bbytes_(?:acked|received):(\d+)")


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals since the process started: processor seconds, and bytes on its sockets to the coordinator and to peers."""

    at_s: float
    cpu_s: float
    session_bytes: int
    link_bytes: int


class PauseStory(runs.Story):
    """A story that pauses a peer at a step, watches it, and resumes it.

    Args:
        watched_s: seconds for which the paused peer is watched; ``figures`` is None until then.
    """

    def __init__(self, at_step: int, watched_s: float) -> None:
        super().__init__()
        self._at_step = at_step
        self._watched_s = watched_s
        self._watching: threading.Thread | None = None
        self.figures: dict[str, float] | None = None

    def on_status(self, status: Mapping[str, Any], ended: Mapping[str, int]) -> None:
        """Start watching once the run is at the step and the peer generates."""
        super().on_status(status, ended)
        if self._watching is None and int(status["step"]) >= self._at_step:
            assert self.fleet is not None
            folder = self.fleet.folder.root / "peers" / PEER
            if not _generates(folder):
                return
            port = json.loads(self.fleet.folder.endpoints.read_text())["grpc_address"].rpartition(":")[2]
            arguments = (folder, self.fleet.processes[PEER].pid, port)
            self._watching = threading.Thread(target=self._watch, args=arguments, daemon=True)
            self._watching.start()

    def _watch(self, folder: Path, pid: int, port: str) -> None:
        before = [_sample(pid, port, {})]
        time.sleep(_WINDOW_S)
        before.append(_sample(pid, port, {}))
        request(folder, {"do": "pause"})
        began_s, sockets, samples = time.monotonic(), dict[str, int](), list[Sample]()
        while time.monotonic() < began_s + self._watched_s + _AFTER_S:
            samples.append(_sample(pid, port, sockets))
            time.sleep(_SAMPLE_S)
        request(folder, {"do": "resume"})
        self.figures = {
            "generating_cpu_share": (before[1].cpu_s - before[0].cpu_s) / (before[1].at_s - before[0].at_s),
            **figures_of(samples, began_s),
        }


def figures_of(samples: Sequence[Sample], began_s: float) -> dict[str, float]:
    """Return the figures of a pause that began at ``began_s``."""
    later = [sample for sample in samples if sample.at_s >= began_s + _AFTER_S]
    first, last = later[0], later[-1]
    seconds = last.at_s - first.at_s
    return {
        "pause_cpu_share": (last.cpu_s - first.cpu_s) / seconds,
        "pause_quiet_s": _quiet_s(samples, began_s),
        "pause_link_bytes": float(last.link_bytes - first.link_bytes),
        "pause_session_bytes_s": (last.session_bytes - first.session_bytes) / seconds,
    }


def _quiet_s(samples: Sequence[Sample], began_s: float) -> float:
    """Return the time of the first sample after the start of the last window that was not quiet; 0 if all were."""
    quiet_s = 0.0
    for index, begin in enumerate(samples):
        end = next((sample for sample in samples[index:] if sample.at_s >= begin.at_s + _WINDOW_S), None)
        if end is None:
            break
        share = (end.cpu_s - begin.cpu_s) / (end.at_s - begin.at_s)
        moved = end.session_bytes - begin.session_bytes
        if share > _CPU_SHARE_MAX or moved > _HEARTBEAT_BYTES_MAX or end.link_bytes != begin.link_bytes:
            quiet_s = samples[index + 1].at_s - began_s
    return quiet_s


def _generates(folder: Path) -> bool:
    """Whether the peer answers and is generating tokens."""
    try:
        report = request(folder, {"do": "status"})
    except RollcastError:
        return False
    return bool(report["state"] == "generating" and report["tokens_per_second"])


def _sample(pid: int, port: str, sockets: dict[str, int]) -> Sample:
    """Take one sample; ``sockets`` keeps the byte counts of sockets that have closed since."""
    listed = subprocess.run(("ss", "-tinpH"), check=True, capture_output=True, text=True, timeout=_SS_DEADLINE_S).stdout
    now_s = time.monotonic()
    for head, details in itertools.pairwise(listed.splitlines()):
        if f"pid={pid}," in head:
            local, remote = head.split()[3:5]
            sockets[f"{local} {remote}"] = sum(map(int, _COUNTED.findall(details)))
    session = sum(moved for key, moved in sockets.items() if key.endswith(f":{port}"))
    return Sample(now_s, _cpu_s(pid), session, sum(sockets.values()) - session)


def _cpu_s(pid: int) -> float:
    """Return the processor seconds of all threads, which the kernel counts in nanoseconds."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns * 1e-9
