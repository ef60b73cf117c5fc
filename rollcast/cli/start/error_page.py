"""Find the section on an error's code or on an exit status in docs/errors.md, which is installed with Rollcast."""

from __future__ import annotations

import re
from pathlib import Path

from rollcast.runtime.errors import ConfigError

PAGE = Path(__file__).with_name("errors.md")  # a link to docs/errors.md of the repository
_ASKED = re.compile(r"(?:error )?(RC\d+)|(?:exit )?status (\d+)", re.IGNORECASE)
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")  # leads nowhere on a machine without the other pages


def heading_asked(subject: str) -> str | None:
    """Return how the heading of the section begins that a subject asks for: `RC302`, `status 77`; None for others."""
    asked = _ASKED.fullmatch(subject)
    if asked is None:
        return None
    return asked[1].upper() if asked[1] else f"Exit status {asked[2]}"


def section(heading: str) -> str:
    """Return the section whose heading begins so, in Markdown, with the heading's text as its first line.

    Raises:
        ConfigError: there is no such error or exit status.
    """
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    for one in sections:
        if re.match(rf"{re.escape(heading)}\b", one):
            return _LINK.sub(r"\1", one.strip())
    kind = "RC" if heading.startswith("RC") else "Exit status"
    known = [one.splitlines()[0] for one in sections if one.startswith(kind)]
    raise ConfigError(f"there is no {heading}", fix=f"choose among {', '.join(known)}")
