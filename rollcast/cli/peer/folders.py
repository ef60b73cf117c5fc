"""Arguments that several `rollcast peer` commands share, and the default folders of a peer.

Configuration and state lie in the user's XDG folders, outside the installation, so that an upgrade keeps them.
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

ConfigFile = Annotated[Path | None, Parameter(help="The peer's configuration; by default that of this user's peer.")]

EnginePython = Annotated[
    Path | None,
    Parameter(help="Python interpreter of the environment that has vLLM, which then generates; by default jax does."),
]

InviteText = Annotated[str, Parameter(allow_leading_hyphen=True)]


def only_warnings() -> None:
    """Log only warnings, to standard error: standard output is for the command's own text."""
    from rollcast.runtime.logs import configure_logging

    configure_logging("cli", level=logging.WARNING)


def read_invite_argument(text: str) -> str:
    """Return the invite as given, or from standard input if it is "-".

    Raises:
        ConfigError: standard input is empty.
    """
    if text != "-":
        return text.strip()
    read = sys.stdin.read(INVITE_LENGTH_MAX + 100).strip()
    if not read:
        raise ConfigError("standard input has no invite", fix="paste the whole invite that the operator sent")
    return read


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask the user for confirmation; return True without asking if ``yes``.

    Raises:
        ConfigError: standard input is not a terminal, so the user cannot be asked.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(
            "this command needs a confirmation, and standard input is not a terminal",
            cause=f"the question is: {question}",
            fix="confirm with --yes",
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def config_file() -> Path:
    """Return the configuration file of this user's peer."""
    return config_home() / "rollcast" / "peer.toml"


def config_home() -> Path:
    """Return the folder of this user's settings."""
    return _base("XDG_CONFIG_HOME", ".config")


def state_folder() -> Path:
    """Return the folder with identity, certificate, versions and receipts of this user's peer."""
    return _base("XDG_STATE_HOME", ".local/state") / "rollcast" / "peer"


def _base(variable: str, default: str) -> Path:
    """Return a base folder. The XDG Base Directory specification demands that a relative path is ignored."""
    given = Path(os.environ.get(variable, ""))
    return given if given.is_absolute() else Path.home() / default


StateFolder = Annotated[
    Path | None,
    Parameter(help="The peer's state folder; by default that of this user's peer."),
]
