"""Define which versions the learner keeps for training, as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rollcast.wire.ids import Version

VERSIONS_KEPT = "versions_kept"  # in the ledger's meta: VersionsKept as JSON


@dataclass(frozen=True, slots=True)
class VersionsKept:
    """The versions that the learner keeps for training: those up to this age in learner steps, and none older."""

    age_max: int  # the largest that the gate of this run was ever meant to have
    oldest: Version = Version(0)  # noqa: RUF009 - a NewType of int; what was older was discarded before S was raised

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> VersionsKept:
        return cls(**json.loads(text))
