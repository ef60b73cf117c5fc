"""`rollcast coordinator|learner|peer`: one process each, from its own TOML."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

from cyclopts import Parameter

from rollcast.cli.files import Role, load
from rollcast.cli.options import Settings
from rollcast.runtime.config import dump_json
from rollcast.runtime.errors import MissingExtra
from rollcast.runtime.logs import configure_logging
from rollcast.runtime.process import die_with_parent, run_process

#: A package of each role's extra, to say at once when it is missing. A peer has a choice of engines: it says so itself.
_NEEDS: dict[Role, str] = {"coordinator": "reasoning_gym", "learner": "optax"}


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class RoleOptions:
    """Options that every role's command has."""

    setting: Settings = ()
    """section.key=value on top of the file; may be repeated."""
    log_file: Path | None = None
    """Append the log here instead of printing it."""
    dry_run: bool = False
    """Check the configuration, print it resolved, and stop."""
    with_parent: bool = False
    """End when the process that started this one ends."""


_DEFAULTS = RoleOptions()


def coordinator(config: Path, /, *, options: RoleOptions = _DEFAULTS) -> int:
    """Run the coordinator.

    Parameters
    ----------
    config
        TOML file; `rollcast config show --role coordinator` lists its keys.
    """
    return _run("coordinator", config, options)


def learner(
    config: Path,
    /,
    *,
    processes: int | None = None,
    process_id: int | None = None,
    coordinator_address: str | None = None,
    options: RoleOptions = _DEFAULTS,
) -> int:
    """Run the learner, or one of its processes.

    Parameters
    ----------
    config
        TOML file; `rollcast config show --role learner` lists its keys.
    processes
        How many processes the learner has, one on each host; short for --set distributed.processes=N.
    process_id
        Which of them this is; 0 leads. Short for --set distributed.process_id=N.
    coordinator_address
        host:port of process 0 for the others; short for --set distributed.coordinator_address=HOST:PORT.
    """
    given = {"processes": processes, "process_id": process_id, "coordinator_address": coordinator_address}
    settings = tuple(f"distributed.{key}={value}" for key, value in given.items() if value is not None)
    return _run("learner", config, replace(options, setting=(*options.setting, *settings)))


def peer(config: Path, /, *, advertise: str = "", options: RoleOptions = _DEFAULTS) -> int:
    """Run a peer, or with role = "origin" the origin.

    Parameters
    ----------
    config
        TOML file; `rollcast config show --role peer` lists its keys.
    advertise
        host:port under which others reach this machine, for instance a port mapped by its router; short for
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
    _require_extra(role)
    configure_logging(getattr(config, "name", role), log_file=options.log_file)
    service = importlib.import_module(f"{role}.service")
    return run_process(lambda stop: service.run(config, stop))


def _require_extra(role: Role) -> None:
    package = _NEEDS.get(role)
    if package is not None and importlib.util.find_spec(package) is None:
        raise MissingExtra(
            f"the {role} needs packages that are not installed",
            cause=f"no package {package}",
            fix=f"pip install 'rollcast[{role}]'",
        )
