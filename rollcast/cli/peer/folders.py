"""Arguments that several of a donor's commands have."""

from __future__ import annotations

import logging
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
