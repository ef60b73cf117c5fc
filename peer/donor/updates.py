"""Whether the run's coordinator runs a newer release than this machine, and what its owner does about it. Pure."""

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
    """Args: ours, theirs: as 0.1.0. how: what to do, in words."""

    ours: str
    theirs: str
    how: str = HOW_TO_UPGRADE

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def newer_release(ours: str, theirs: str) -> NewerRelease | None:
    """What the coordinator runs, if that is a later release than ours.

    Args:
        ours, theirs: as both say it of themselves, "rollcast 0.1.0 (commit 1a2b3c4)". What has another form counts as
            no news: the coordinator's words are not shown, only its numbers.
    """
    mine, other = _RELEASE.match(ours), _RELEASE.match(theirs)
    if mine is None or other is None:
        return None
    numbers, others = tuple(map(int, mine.groups())), tuple(map(int, other.groups()))
    if others <= numbers:
        return None
    return NewerRelease(".".join(map(str, numbers)), ".".join(map(str, others)))
