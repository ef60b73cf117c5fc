"""`rollcast config show|validate|paths`: what may be configured, whether a file is right, where things are."""

from __future__ import annotations

import json
from pathlib import Path

from cyclopts import App
from rich.console import Console
from rich.table import Table

from rollcast.cli.files import Role, config_class, guess_role, load
from rollcast.cli.options import THIS_RUN, Json
from rollcast.cli.peer.folders import config_file, state_folder
from rollcast.cli.peer.logs import log_file
from rollcast.runtime.config import describe, dump_json
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.run_folder import RunFolder

app = App(name="config", help="Show and check configuration files, and say where files are.")


@app.command
def show(
    file: Path | None = None,
    /,
    *,
    role: Role | None = None,
    json_output: Json = False,
) -> int:
    """Print a file resolved with its defaults, or without a file every key of a role with its meaning.

    Parameters
    ----------
    file
        TOML file of any process.
    role
        which process; guessed from the file.
    json_output
        print JSON.
    """
    if file is not None:
        print(dump_json(load(file, role or guess_role(file))))
        return 0
    if role is None:
        raise ConfigError("nothing to show", fix="give a file, or --role up|coordinator|learner|peer")
    rows = describe(config_class(role))
    if json_output:
        print(json.dumps([{"key": key, "default": json.loads(value), "meaning": text} for key, value, text in rows]))
        return 0
    table = Table("key", "default", "meaning", title=f"configuration of {role}")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    return 0


@app.command
def validate(file: Path, /, *, role: Role | None = None) -> int:
    """Check a file; the exit status is 0 when it is right, 64 when it is not.

    Parameters
    ----------
    file
        TOML file of any process.
    role
        which process; guessed from the file.
    """
    found = role or guess_role(file)
    load(file, found)
    print(f"{file}: valid configuration of {found}")
    return 0


@app.command
def paths(*, json_output: Json = False) -> int:
    """Say where this user's files are: those of a donor's peer, and the newest run's.

    Parameters
    ----------
    json_output
        print one JSON object.
    """
    state, run = state_folder(), RunFolder(THIS_RUN.run_folder.resolve())
    found = {
        "peer configuration": config_file(),
        "peer state": state,
        "peer identity": state / "identity.key",
        "peer log": log_file(state),
        "newest run": run.root,
        "its configurations": run.config,
        "its logs": run.logs,
    }
    if json_output:
        print(json.dumps({name: {"path": str(path), "exists": path.exists()} for name, path in found.items()}))
        return 0
    for name, path in found.items():
        print(f"{name:<20} {path}{'' if path.exists() else '  (not there)'}")
    return 0
