"""`rollcast coordinator|gateway|scorer|cell|learner|peer`: run one process from its own TOML file."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from cyclopts import Parameter

from rollcast.cli.files import Role, load
from rollcast.cli.options import Settings
from rollcast.runtime.config import dump_json
from rollcast.runtime.errors import MissingExtra
from rollcast.runtime.install import install_command
from rollcast.runtime.logs import configure_logging
from rollcast.runtime.process import die_with_parent, run_process

#: A package of each role's extra, so that a missing extra is reported at once. A peer chooses among engines and reports
#: a missing one itself.
_NEEDS: dict[Role, str] = {"coordinator": "reasoning_gym", "learner": "optax"}
#: Module of each role's process, where it is not ROLE.service.
_SERVICES: dict[Role, str] = {
    "gateway": "coordinator.gateway.service",
    "scorer": "coordinator.scorer.service",
    "cell": "rollcast.cell.service",
}


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class RoleOptions:
    """Options of every role's command."""

    setting: Settings = ()
    """Override one setting of the file, as section.key=value. May be repeated."""
    log_file: Path | None = None
    """Append the log to this file instead of printing it."""
    dry_run: bool = False
    """Check the configuration, print it with defaults filled in, and exit."""
    with_parent: bool = False
    """Exit when the parent process exits."""


_DEFAULTS = RoleOptions()


def coordinator(config: Path, /, *, options: RoleOptions = _DEFAULTS) -> int:
    """Run the coordinator.

    Parameters
    ----------
    config
        Configuration file (TOML). `rollcast config show --role coordinator` lists its keys.
    """
    return _run("coordinator", config, options)


def gateway(config: Path, /, *, options: RoleOptions = _DEFAULTS) -> int:
    """Run a gateway, which serves peers in the place of a coordinator (docs/scale.md).

    Parameters
    ----------
    config
        Configuration file (TOML). `rollcast config show --role gateway` lists its keys.
    """
    return _run("gateway", config, options)


def scorer(config: Path, /, *, options: RoleOptions = _DEFAULTS) -> int:
    """Run a scorer, which scores completions for coordinators over HTTP (docs/scale.md).

    Parameters
    ----------
    config
        Configuration file (TOML). `rollcast config show --role scorer` lists its keys.
    """
    return _run("scorer", config, options)


def cell(config: Path, /, *, options: RoleOptions = _DEFAULTS) -> int:
    """Run the uplink of a cell, between the cell's coordinator and the head's (docs/scale.md).

    Parameters
    ----------
    config
        Configuration file (TOML). `rollcast config show --role cell` lists its keys.
    """
    return _run("cell", config, options)


def learner(
    config: Path,
    /,
    *,
    processes: int | None = None,
    process_id: int | None = None,
    coordinator_address: str | None = None,
    options: RoleOptions = _DEFAULTS,
) -> int:
    """Run the learner, or one process of a learner on several hosts.

    Parameters
    ----------
    config
        Configuration file (TOML). `rollcast config show --role learner` lists its keys.
    processes
        Number of learner processes, one on each host. Under Slurm, Open MPI and on TPU slices, this option and the
        next two are detected. Short for --set distributed.processes=N.
    process_id
        Number of this process; 0 leads. Short for --set distributed.process_id=N.
    coordinator_address
        HOST:PORT at which the other processes reach process 0. Short for
        --set distributed.coordinator_address=HOST:PORT.
    """
    given = {"processes": processes, "process_id": process_id, "coordinator_address": coordinator_address}
    settings = tuple(f"distributed.{key}={value}" for key, value in given.items() if value is not None)
    return _run("learner", config, replace(options, setting=(*options.setting, *settings)))


def peer(config: Path, /, *, advertise: str = "", options: RoleOptions = _DEFAULTS) -> int:
    """Run a peer, or the origin if the file has role = "origin".

    Parameters
    ----------
    config
        Configuration file (TOML). `rollcast config show --role peer` lists its keys.
    advertise
        HOST:PORT at which other machines reach this one, for example a port that its router forwards. Short for
        --set link.advertise=HOST:PORT.
    """
    if advertise:
        options = replace(options, setting=(*options.setting, f"link.advertise={advertise}"))
    return _run("peer", config, options)


def _run(role: Role, path: Path, options: RoleOptions) -> int:
    config = load(path, role, options.setting)
    if options.dry_run:
        print(dump_json(config))
        return 0
    if options.with_parent:
        die_with_parent()
    require_extra(role)
    configure_logging(getattr(config, "name", role), log_file=options.log_file)
    structlog.get_logger().info("loading")  # imports take seconds, on a busy machine many
    service = importlib.import_module(_SERVICES.get(role, f"{role}.service"))
    return run_process(lambda stop: service.run(config, stop))


def require_extra(role: Role) -> None:
    """Check that a role's packages are installed.

    Raises:
        MissingExtra: one of them is missing.
    """
    package = _NEEDS.get(role)
    if package is not None and importlib.util.find_spec(package) is None:
        raise MissingExtra(
            f"the {role} needs packages that are not installed",
            cause=f"the package {package} is missing",
            fix=install_command(role),
        )
