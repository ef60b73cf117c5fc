"""What the emulated network needs of the machine, and its two C programs compiled when they are first used."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from rollcast.runtime.errors import MissingExtra

_HERE = Path(__file__).parent
_COMPILE_TIMEOUT_S = 120.0
_TOOLS = {"gcc": "gcc", "ip": "iproute2"}


def why_not() -> str:
    """What this machine lacks for an emulated network; empty when nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    missing = [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def require() -> None:
    """Check that an emulated network can be made here.

    Raises:
        MissingExtra: it cannot.
    """
    if reason := why_not():
        raise MissingExtra(
            "an emulated network cannot be made on this machine",
            cause=reason,
            fix="run as root on Linux with /dev/net/tun, gcc and iproute2 (apt-get install gcc iproute2)",
        )


def emulator() -> Path:
    """The compiled emulator (wanem.c).

    Raises:
        MissingExtra: gcc cannot compile it.
    """
    return _compiled(_HERE / "wanem.c", "wanem", [])


def socket_shim() -> Path:
    """The compiled LD_PRELOAD library that sets congestion control and pacing of sockets (sockets.c).

    Raises:
        MissingExtra: gcc cannot compile it.
    """
    return _compiled(_HERE / "sockets.c", "sockets.so", ["-shared", "-fPIC"])


def _compiled(source: Path, name: str, options: list[str]) -> Path:
    """Compile into the cache folder, once for each content of the source."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollcast-bench"
    target = cache / f"{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}-{name}"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = cache / f".{target.name}.{os.getpid()}"
    command = ["gcc", "-O2", *options, "-o", str(unfinished), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise MissingExtra(
            f"gcc cannot compile {source.name}", cause=done.stderr.strip()[-500:], fix="install gcc and libc6-dev"
        )
    os.replace(unfinished, target)
    return target
