"""Describe the machine that a figure was measured on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rollcast.runtime.errors import WaitTimedOut
from rollcast.runtime.version import software_version

_ALONE_POLL_S = 0.5
_ALONE_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a benchmark: the settings it ran with, and its figures by key.

    ``missing`` names keys that have no value on this machine; they are printed as null. ``failed`` has the error of
    each part of the benchmark that failed while others went on.
    """

    settings: dict[str, Any]
    figures: dict[str, float]
    missing: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


def describe_machine() -> dict[str, Any]:
    """Return cores, memory, processor and the versions of Python, OpenSSL and Rollcast; nothing that names the host."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "processor": _processor(),
        "python": platform.python_version(),
        "openssl": ssl.OPENSSL_VERSION,  # with AVX-512, 3.5 encrypts twice as fast as 3.0
        "rollcast": software_version(),
    }


@contextlib.contextmanager
def alone(timeout_s: float = _ALONE_TIMEOUT_S) -> Iterator[None]:
    """Wait until no other benchmark that fills this machine runs, and keep others from starting meanwhile.

    Raises:
        WaitTimedOut: another benchmark still runs.
    """
    end_s, printed = time.monotonic() + timeout_s, False
    with (Path(tempfile.gettempdir()) / "rollcast-bench.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise WaitTimedOut(f"waited {timeout_s:.0f} s for another benchmark on this machine") from None
                if not printed:
                    print("waiting for another benchmark on this machine to end", file=sys.stderr)
                printed = True
                time.sleep(_ALONE_POLL_S)
        yield


def _processor() -> str:
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        for line in cpu_info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
