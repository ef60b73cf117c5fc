"""Arguments that several of a donor's commands have.

Where a donor's machine keeps its configuration and its state: outside the place of installation.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rollcast.runtime.errors import ConfigError
from rollcast.wire.limits import INVITE_LENGTH_MAX

ConfigFile = Annotated[Path | None, Parameter(help="The peer's configuration; without it the one of this user's peer.")]

InviteText = Annotated[str, Parameter(allow_leading_hyphen=True)]


def only_warnings() -> None:
    """Log warnings to standard error: what a command prints is its own."""
    from rollcast.runtime.logs import configure_logging

    configure_logging("cli", level=logging.WARNING)


def read_invite_argument(text: str) -> str:
    """An invite as given, or with - from standard input.

    Raises:
        ConfigError: nothing comes.
    """
    if text != "-":
        return text.strip()
    read = sys.stdin.read(INVITE_LENGTH_MAX + 100).strip()
    if not read:
        raise ConfigError("no invite came on standard input", fix="paste the whole string that the operator sent")
    return read


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask a person; without a terminal only --yes counts.

    Raises:
        ConfigError: there is nobody to ask.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"nobody is there to answer: {question}", fix="give --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


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
