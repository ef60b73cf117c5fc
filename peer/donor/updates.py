"""Tell the owner when the run's coordinator runs a newer release than this machine. Pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

_RELEASE = re.compile(r"^rollcast (\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:\D|$)")

HOW_TO_UPGRADE = (
    "let it finish what it holds (`rollcast peer finish`), upgrade the package or the image, start it again; "
    "identity, versions and receipts stay"
)


@dataclass(frozen=True, slots=True)
class NewerRelease:
    """A newer release. Args: ours, theirs: versions such as 0.1.0; how: text that says how to upgrade."""

    ours: str
    theirs: str
    how: str = HOW_TO_UPGRADE

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def newer_release(ours: str, theirs: str) -> NewerRelease | None:
    """Return the coordinator's release if it is newer than ours; None: it is not, or its form is unknown.

    Args:
        ours, theirs: release texts such as "rollcast 0.1.0 (commit 1a2b3c4)". Only the numbers are shown to the owner,
            never the coordinator's text.
    """
    mine, other = _RELEASE.match(ours), _RELEASE.match(theirs)
    if mine is None or other is None:
        return None
    numbers, others = tuple(map(int, mine.groups())), tuple(map(int, other.groups()))
    if others <= numbers:
        return None
    return NewerRelease(".".join(map(str, numbers)), ".".join(map(str, others)))
