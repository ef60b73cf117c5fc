"""Write docs/configuration.md, every key of every role, from the configuration classes: `make configuration-page`."""

from __future__ import annotations

from pathlib import Path

from rollcast.cli.files import Role, config_class
from rollcast.runtime.config import describe

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
_TITLES: dict[Role, str] = {
    "up": "`rollcast up`: one machine",
    "coordinator": "Coordinator",
    "gateway": "Gateway",
    "scorer": "Scorer",
    "cell": "Uplink of a cell",
    "learner": "Learner",
    "peer": "Peer and origin",
}
_HEAD = """\
# Configuration

Every key of every process, with its default and its meaning; `make configuration-page` writes this page from the
sources. `rollcast config show --role ROLE` prints the same in a terminal, `rollcast config show FILE` a file with its
defaults, and `rollcast config validate FILE` checks a file and loads its task.

In the file of `rollcast up`, the keys of the other processes stand in the sections `[coordinator]`, `[learner]`,
`[origin]` and `[peer]`. On the command line, `--set section.key=value` replaces one. `section{kind}.key` is a key of a
section that has several kinds, for the one with `kind = "kind"`; `section[].key` is one of a list of sections,
`section.NAME.key` one of sections with names of your own.
"""


def page() -> str:
    """Return the text of docs/configuration.md."""
    parts = [_HEAD]
    for role in _TITLES:
        rows = describe(config_class(role))
        if role == "up":
            sections = ("coordinator.", "learner.", "origin.", "peer.")
            rows = [row for row in rows if not row[0].startswith(sections)]
        table = ["| key | default | meaning |", "|---|---|---|", *map(_line, rows)]
        parts.append("\n".join([f"## {_TITLES[role]}", "", *table]) + "\n")
    return "\n".join(parts)


def _line(row: tuple[str, str, str]) -> str:
    key, default, meaning = (text.replace("|", "\\|") for text in row)
    shown = "required" if default == '"required"' else f"`{default}`"
    return f"| `{key}` | {shown} | {meaning} |"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
