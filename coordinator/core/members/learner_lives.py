"""The learner's wall time over all of its lives, from what each said of itself. Pure.

A life says when it began, how many seconds it has accounted for, and what they went into (``life_s``, the sum of all
``life_*_s``; see docs/metrics.md). It says so again and again, in the middle of a long stretch too, whose seconds come
with its end. Between two lives the learner was away; what a life did after its last word counts as that too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

LEARNER_LIVES = "learner_lives"  # in the ledger's meta
BEGAN = "life_began_unix_s"
LIVED = "life_s"
LIVES_MAX = 1_000  # kept one by one; the oldest are added up beyond


@dataclass(slots=True)
class _Life:
    began_unix_s: float  # the learner's wall clock; tells lives apart
    said_unix_s: float  # up to where its seconds are accounted for
    seconds: dict[str, float]  # by cause; their sum is the life


@dataclass(slots=True)
class LearnerLives:
    """What became of the learner's wall time, on the clocks of the machines that it lived on."""

    lives: list[_Life] = field(default_factory=list)

    @classmethod
    def from_json(cls, text: str) -> LearnerLives:
        """What ``to_json`` gave."""
        return cls([_Life(**one) for one in json.loads(text)])

    def to_json(self) -> str:
        """For the ledger."""
        return json.dumps([asdict(life) for life in self.lives])

    def said(self, values: Mapping[str, float]) -> bool:
        """The learner reported these figures; False if they say nothing new of its life."""
        began_unix_s, lived_s = values.get(BEGAN), values.get(LIVED)
        if began_unix_s is None or lived_s is None:
            return False
        seconds = {name[len("life_") : -len("_s")]: value for name, value in values.items() if _is_cause(name)}
        life = _Life(began_unix_s, began_unix_s + lived_s, seconds)
        last = self.lives[-1] if self.lives else None
        if last is None or life.began_unix_s > last.began_unix_s:
            self.lives.append(life)
            self._add_up_oldest()
            return True
        if life.began_unix_s < last.began_unix_s or life.said_unix_s <= last.said_unix_s:
            return False  # a word of an earlier life that comes late, or nothing new
        self.lives[-1] = life
        return True

    @property
    def wall_s(self) -> float:
        """From the beginning of the first life to the last second that the newest accounts for."""
        return self.lives[-1].said_unix_s - self.lives[0].began_unix_s if self.lives else 0.0

    def seconds(self) -> dict[str, float]:
        """Wall time by cause, ``away`` among them: adds up to ``wall_s`` as far as the machines' clocks agree."""
        total: dict[str, float] = {}
        for life in self.lives:
            for cause, seconds in life.seconds.items():
                total[cause] = total.get(cause, 0.0) + seconds
        away_s = sum(
            max(0.0, later.began_unix_s - life.said_unix_s)
            for life, later in zip(self.lives, self.lives[1:], strict=False)
        )
        return total | {"away": total.get("away", 0.0) + away_s}

    def _add_up_oldest(self) -> None:
        while len(self.lives) > LIVES_MAX:
            first, second = self.lives[0], self.lives.pop(1)
            gap_s = max(0.0, second.began_unix_s - first.said_unix_s)
            for cause, seconds in (second.seconds | {"away": second.seconds.get("away", 0.0) + gap_s}).items():
                first.seconds[cause] = first.seconds.get(cause, 0.0) + seconds
            first.said_unix_s = second.said_unix_s


def _is_cause(name: str) -> bool:
    return name.startswith("life_") and name.endswith("_s") and name not in (BEGAN, LIVED)
