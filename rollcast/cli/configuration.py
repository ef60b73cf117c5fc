"""`rollcast config show|validate`: what may be configured, and whether a file is right."""

from __future__ import annotations

import json
from pathlib import Path

from cyclopts import App
from rich.console import Console
from rich.table import Table

from rollcast.cli.files import Role, config_class, guess_role, load
from rollcast.cli.options import Json
from rollcast.runtime.config import describe, dump_json
from rollcast.runtime.errors import ConfigError

app = App(name="config")


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
