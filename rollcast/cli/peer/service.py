"""`rollcast peer service install|remove|show`: let this machine's service manager run the peer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from peer.donor.install.units import Kind
from rollcast.cli.options import AsJson
from rollcast.cli.peer.folders import ConfigFile, StateFolder, config_file, config_home, state_folder
from rollcast.runtime.errors import ConfigError, ServiceManager

if TYPE_CHECKING:
    from peer.donor.install.manager import Manager
    from peer.donor.install.units import Service

System = Annotated[bool, Parameter(negative=())]
MemoryMax = Annotated[str, Parameter(help="Maximum memory of the peer, for example 80%% or 12G (systemd only).")]

SYSTEM_CONFIG = Path("/etc/rollcast/peer.toml")
SYSTEM_STATE = Path("/var/lib/rollcast")

app = App(name="service", help="Let this machine's service manager run the peer.")


@app.command
def install(
    *,
    system: System = False,
    state: StateFolder = None,
    config: ConfigFile = None,
    memory_max: MemoryMax = "80%",
    json_output: AsJson = False,
) -> int:
    """Install a sandboxed service that runs the peer now and at every boot, as `rollcast peer join` configured it.

    Parameters
    ----------
    system
        Install it for the whole machine, as a user of its own and with /etc/rollcast/peer.toml. Needs root.
    """
    manager, service, path = _service("system" if system else _own_kind(), state, config, memory_max)
    if not path.exists():
        fix = f"create it with `rollcast peer join INVITE --no-start --config {path}`"
        raise ConfigError(f"no configuration file at {path}", fix=fix)
    if not manager.is_there():
        raise ServiceManager(
            "this machine's service manager cannot be reached",
            cause=f"this user has no {'launchd' if manager.kind == 'launchd' else 'systemd'} session",
            fix="log in as this user, install with --system, or let `rollcast peer join` start a background process",
        )
    manager.install(service)
    answer = {"kind": manager.kind, "unit": str(manager.unit_file), "config": str(path)}
    print(json.dumps(answer) if json_output else f"{manager.unit_file} runs the peer now and at every boot.")
    return 0


@app.command
def remove(*, system: System = False, json_output: AsJson = False) -> int:
    """Stop and remove the service. Configuration, identity and state stay.

    Parameters
    ----------
    system
        Remove the service of the whole machine. Needs root.
    """
    from peer.donor.install.manager import Manager

    manager = Manager("system" if system else _own_kind(), config_home())
    removed = manager.remove()
    said = f"Removed {manager.unit_file}" if removed else f"There is no service to remove at {manager.unit_file}"
    print(json.dumps({"removed": removed, "unit": str(manager.unit_file)}) if json_output else said)
    return 0


@app.command
def show(
    kind: Kind | None = None,
    /,
    *,
    state: StateFolder = None,
    config: ConfigFile = None,
    memory_max: MemoryMax = "80%",
    json_output: AsJson = False,
) -> int:
    """Print the unit file that `install` would write, without installing it.

    Parameters
    ----------
    kind
        Kind of unit: user or system (systemd), or launchd; by default that of this machine.
    """
    from peer.donor.install.units import unit_of

    manager, service, _ = _service(kind or _own_kind(), state, config, memory_max)
    text = unit_of(service, manager.kind)
    if json_output:
        unit = manager.unit_file
        print(json.dumps({"kind": manager.kind, "unit": str(unit), "installed": unit.exists(), "text": text}))
    else:
        print(text, end="")
    return 0


def _own_kind() -> Kind:
    return "launchd" if sys.platform == "darwin" else "user"


def _service(kind: Kind, state: Path | None, config: Path | None, memory_max: str) -> tuple[Manager, Service, Path]:
    from peer.donor.install import join, running
    from peer.donor.install.manager import Manager
    from peer.donor.install.units import Service

    is_system = kind == "system"
    path = (config or (SYSTEM_CONFIG if is_system else config_file())).absolute()
    folder = state or (SYSTEM_STATE if is_system else state_folder())
    places = join.PeerPaths(path, SYSTEM_STATE if is_system else folder)
    if not is_system and path.exists():
        places = join.peer_paths(path, folder, state_given=state is not None)
    command = running.peer_command(path)
    if is_system:
        command += ["--set", f"state_folder={SYSTEM_STATE}"]
    else:
        command += ["--log-file", str(places.log_file)]
    in_home = any(
        word.startswith(("/home/", "/root/", "/run/user/")) for word in (*command, os.path.realpath(command[0]))
    )
    service = Service(
        command=command,
        state_folder=str(places.state_folder),
        log_file=str(places.log_file),
        home_hidden=not in_home,
        memory_max=memory_max,
        drain_s=join.drain_s_of(path),
    )
    return Manager(kind, config_home()), service, path
