"""Where a donor's machine keeps its configuration and its state: outside the place of installation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def config_file() -> Path:
    """The peer's configuration of this user."""
    return config_home() / "rollcast" / "peer.toml"


def config_home() -> Path:
    """Where this user's programs keep their settings."""
    return _base("XDG_CONFIG_HOME", ".config")


def state_folder() -> Path:
    """Identity, certificate, versions and receipts of this user's peer."""
    return _base("XDG_STATE_HOME", ".local/state") / "rollcast" / "peer"


def _base(variable: str, default: str) -> Path:
    """XDG Base Directory specification: a relative path in the variable is to be ignored."""
    given = Path(os.environ.get(variable, ""))
    return given if given.is_absolute() else Path.home() / default


StateFolder = Annotated[
    Path | None,
    Parameter(help="The peer's state folder; without it the one of this user's peer."),
]
