"""`rollcast doctor`: what this machine has, what it lacks for which role, and the command that installs it."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from peer.donor.check.findings import Finding, Level, bare_room_findings, ordered, system_findings
from peer.donor.machine.facts import is_taken, machine_facts
from rollcast.cli.options import Json
from rollcast.cli.peer.check import finding_lines
from rollcast.cli.peer.folders import only_warnings
from rollcast.cli.start.extras import required
from rollcast.runtime.errors import ConfigError, MachineUnfit, MissingExtra, PortInUse
from rollcast.runtime.install import install_command
from rollcast.sim import compiled

Role = Literal["coordinator", "learner", "peer"]
ROLES: tuple[Role, ...] = ("coordinator", "learner", "peer")
_PORTS = {7400: "serve.grpc_port", 7401: "serve.http_port", 7402: "serve.observe_port", 7410: "the origin's link.port"}
_OPTIONAL = {
    "p2p": "; only peers behind routers need it, to be reached through holes and relays",
    "lan": "; only peers need it, to ask a router for a port and to find neighbours",
}
_JAX_DEADLINE_S = 120.0
_JAX_PROBE = "import jax, json; d = jax.devices(); print(json.dumps([jax.__version__, d[0].platform, len(d)]))"
_OPEN_FILES_LEAST = 4096
_DEBIAN, _OTHERS = "apt-get install gcc libc6-dev python3-dev libgmp-dev", "dnf install gcc python3-devel gmp-devel"


def doctor(*roles: Role, json_output: Json = False) -> int:
    """Check what this machine has, what it lacks for which role, and print the commands that install it.

    Nothing is installed or written. The exit status is 69 if a named role lacks something.

    Parameters
    ----------
    roles
        Roles that this machine must be able to play; without any, what each of them lacks is only a warning.
    json_output
        Print one JSON object.
    """
    only_warnings()
    print("asking jax for its devices ...", file=sys.stderr)
    machine = machine_facts(Path.cwd(), link_host="", link_port=0)
    found: list[Finding | None] = [*system_findings(machine), *bare_room_findings(machine), *_packages(roles)]
    found += [_jax(has_gpu=bool(machine.accelerators), roles=roles), _compiler(), _compiled_cores(), *_ports()]
    found.append(_open_files())
    findings = ordered(one for one in found if one is not None)
    lacking = any(one.level == "error" for one in findings)
    if json_output:
        print(json.dumps({"fit": not lacking, "findings": [asdict(one) for one in findings]}, indent=2))
    else:
        print("\n".join(finding_lines(findings)))
    return MissingExtra.exit_code if lacking else 0


def _packages(wanted: Sequence[Role]) -> Iterable[Finding]:
    """Yield whether each role's packages are installed, and those of links behind NAT."""
    for extra in (*ROLES, "p2p", "lan"):
        missing = [name for name in required(extra) if not _is_installed(name)]
        if not missing:
            yield Finding("ok", extra, "its packages are installed")
            continue
        level: Level = "error" if extra in wanted else "warning"
        text = f"lacks {', '.join(missing)}{_OPTIONAL.get(extra, '')}"
        yield Finding(level, extra, text, MissingExtra.code, install_command(extra))


def _is_installed(name: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _jax(*, has_gpu: bool, roles: Sequence[Role]) -> Finding | None:
    """Return what jax computes on, asked in a process of its own: it takes the devices that it finds."""
    if not _is_installed("jax"):
        return None
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _JAX_PROBE], capture_output=True, text=True, timeout=_JAX_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("warning", "jax", f"jax found no device within {_JAX_DEADLINE_S:g} s", MachineUnfit.code)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        level: Level = "error" if set(roles) & {"learner", "peer"} else "warning"
        return Finding(level, "jax", f"jax does not start: {last}", MissingExtra.code, install_command("peer"))
    release, platform, count = json.loads(ran.stdout.splitlines()[-1])
    text = f"jax {release} computes on {count} {platform} device{'s' if count != 1 else ''}"
    if has_gpu and platform == "cpu":
        role = next((one for one in roles if one != "coordinator"), "peer")
        fix = f"install its plugin: {install_command(role, 'cuda12')} (driver 525 or later), or cuda13 (580 or later)"
        return Finding("warning", "jax", f"there is a GPU, but {text}", MissingExtra.code, fix)
    return Finding("ok", "jax", text)


def _compiler() -> Finding:
    """Return whether packages without wheels can be built: the extra p2p, and a package of the coordinator's."""
    headers = {"Python.h": Path(sysconfig.get_paths()["include"]) / "Python.h"}
    missing = [] if shutil.which("gcc") or shutil.which("cc") else ["C compiler"]
    missing += [name for name, path in headers.items() if not path.exists()]
    if not any(Path("/usr/include").glob("**/gmp.h")):
        missing.append("gmp.h (for the extra p2p)")
    if not missing:
        return Finding("ok", "gcc", "packages without a wheel can be built")
    fix = _DEBIAN if shutil.which("apt-get") else _OTHERS
    return Finding("warning", "gcc", f"packages without a wheel cannot be built: no {', no '.join(missing)}", "", fix)


def _compiled_cores() -> Finding | None:
    """Return whether simulations can use compiled cores; None outside a checkout, where nothing can compile them."""
    if not (compiled.ROOT / "Makefile").exists():
        return None
    try:
        compiled.check()
    except ConfigError as error:
        text = f"{error.what}: {error.cause}; `make compiled` makes them, for `rollcast simulate --compiled`"
        return Finding("ok", "cores", text)
    return Finding("ok", "cores", "`rollcast simulate --compiled` finds cores that are compiled from these sources")


def _ports() -> Iterable[Finding]:
    taken = [port for port in _PORTS if is_taken("0.0.0.0", port)]
    if not taken:
        yield Finding("ok", "ports", f"{', '.join(map(str, _PORTS))} are free")
    for port in taken:
        fix = f"fine if a run uses it; otherwise end what listens there, or change {_PORTS[port]}"
        yield Finding("warning", "ports", f"port {port} is taken", PortInUse.code, fix)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"a process may open {soft:,} files (at most {hard:,}); a coordinator keeps one or more for each member"
    if hard < _OPEN_FILES_LEAST:
        return Finding("warning", "files", text, MachineUnfit.code, "raise the limit: ulimit -Hn, or LimitNOFILE=")
    return Finding("ok", "files", text)
