"""Check that this machine can run the emulated network, and compile its C programs at their first use."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rollcast.runtime.errors import MissingExtra

_HERE = Path(__file__).parent
_COMPILE_TIMEOUT_S = 120.0
_LIBRARY = ("-shared", "-fPIC")
_TOOLS = {"gcc": "gcc", "ip": "iproute2"}


def why_not() -> str:
    """Return what this machine lacks for an emulated network; empty when it lacks nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    missing = [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def require() -> None:
    """Check that an emulated network can be made here.

    Raises:
        MissingExtra: this machine lacks something for it.
    """
    if reason := why_not():
        raise MissingExtra(
            "an emulated network cannot be made on this machine",
            cause=reason,
            fix="run as root on Linux with /dev/net/tun, gcc and iproute2 (apt-get install gcc iproute2)",
        )


def emulator() -> Path:
    """Return the path of the compiled emulator (wanem.c and nat.c).

    Raises:
        MissingExtra: gcc cannot compile it.
    """
    return _compiled(["wanem.c", "nat.c"], "wanem", [])


def socket_shim() -> Path:
    """Return the path of the compiled LD_PRELOAD library for sockets' congestion control and pacing (sockets.c).

    Raises:
        MissingExtra: gcc cannot compile it.
    """
    return _compiled(["sockets.c"], "sockets.so", _LIBRARY)


def nat_library() -> Path:
    """Return the path of the compiled library of the routers' address translation (nat.c).

    Raises:
        MissingExtra: gcc cannot compile it.
    """
    return _compiled(["nat.c"], "nat.so", _LIBRARY)


def _compiled(sources: Sequence[str], name: str, options: Sequence[str]) -> Path:
    """Return a compiled program in the cache folder, compiled once for each content of the sources and headers."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollcast-bench"
    paths = [_HERE / source for source in sources]
    content = b"".join(path.read_bytes() for path in (*paths, *sorted(_HERE.glob("*.h"))))
    target = cache / f"{hashlib.sha256(content).hexdigest()[:16]}-{name}"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = cache / f".{target.name}.{os.getpid()}"
    command = ["gcc", "-O2", *options, "-o", str(unfinished), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise MissingExtra(
            f"gcc cannot compile {', '.join(sources)}",
            cause=done.stderr.strip()[-500:],
            fix="install gcc and libc6-dev",
        )
    os.replace(unfinished, target)
    return target
