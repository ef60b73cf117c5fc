"""`rollcast config show|validate|paths`: list the settings, check a file, print where files are."""

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

app = App(name="config", help="Show and validate configuration files, and print where they are.")


@app.command
def show(
    file: Path | None = None,
    /,
    *,
    role: Role | None = None,
    json_output: Json = False,
) -> int:
    """Print a configuration file with its defaults, or without a file every key of a role with its meaning.

    Parameters
    ----------
    file
        Configuration file (TOML) of any process.
    role
        Which process the file is for; guessed from its sections if not given.
    json_output
        Print JSON.
    """
    if file is not None:
        print(dump_json(load(file, role or guess_role(file))))
        return 0
    if role is None:
        raise ConfigError("no file and no role is given", fix="give a file, or --role up|coordinator|learner|peer|sft")
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
    """Check a configuration file. The exit status is 0 if it is valid and 64 if it is not.

    Parameters
    ----------
    file
        Configuration file (TOML) of any process.
    role
        Which process the file is for; guessed from its sections if not given.
    """
    found = role or guess_role(file)
    load(file, found)
    print(f"{file}: valid configuration of {found}")
    return 0


@app.command
def paths(*, json_output: Json = False) -> int:
    """Print where this user's files are: those of a donor's peer and those of the newest run.

    Parameters
    ----------
    json_output
        Print one JSON object.
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
        print(f"{name:<20} {path}{'' if path.exists() else '  (does not exist)'}")
    return 0
