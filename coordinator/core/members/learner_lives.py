"""Account for the learner's wall time over all of its lives, from what each life reported. Pure.

A life is one process of the learner. It reports when it began, how many seconds it has accounted for, and what they
were spent on (``life_s``, the sum of all ``life_*_s``; see docs/metrics.md). Reports repeat, also during a long
activity, whose seconds are reported when it ends (those of a warm start with each step). Between two lives the learner
was away; the time after a life's last report counts as away too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

LEARNER_LIVES = "learner_lives"  # key in the ledger's meta table
BEGAN = "life_began_unix_s"
LIVED = "life_s"
LIVES_MAX = 1_000  # kept one by one; beyond that the oldest are added up


@dataclass(slots=True)
class _Life:
    began_unix_s: float  # the learner's wall clock; tells lives apart
    said_unix_s: float  # time up to which its seconds are accounted for
    seconds: dict[str, float]  # by cause; their sum is the life
    phase: str = ""  # what it was doing at its newest report; empty if not reported
    detail: str = ""
    phase_since_unix_s: float = 0.0  # the end of what was accounted for when it first reported this phase


@dataclass(slots=True)
class LearnerLives:
    """Keeps what the learner's wall time was spent on, by the clocks of the machines on which it ran."""

    lives: list[_Life] = field(default_factory=list)

    @classmethod
    def from_json(cls, text: str) -> LearnerLives:
        """Return the lives that ``to_json`` wrote."""
        return cls([_Life(**one) for one in json.loads(text)])

    def to_json(self) -> str:
        """Return the lives as JSON for the ledger."""
        return json.dumps([asdict(life) for life in self.lives])

    def observe(self, values: Mapping[str, float], phase: str = "", detail: str = "") -> bool:
        """Take over what the learner reported. Returns False if that contains nothing new about its life."""
        began_unix_s, lived_s = values.get(BEGAN), values.get(LIVED)
        if began_unix_s is None or lived_s is None:
            return False
        seconds = {name[len("life_") : -len("_s")]: value for name, value in values.items() if _is_cause(name)}
        said_unix_s = began_unix_s + lived_s
        life = _Life(began_unix_s, said_unix_s, seconds, phase, detail, said_unix_s)
        last = self.lives[-1] if self.lives else None
        if last is None or life.began_unix_s > last.began_unix_s:
            self.lives.append(life)
            self._add_up_oldest()
            return True
        if life.began_unix_s < last.began_unix_s or life.said_unix_s < last.said_unix_s:
            return False  # a late report of an earlier life
        if life.phase == last.phase:
            if life.said_unix_s == last.said_unix_s:
                return False
            life.phase_since_unix_s = last.phase_since_unix_s
        self.lives[-1] = life
        return True

    @property
    def wall_s(self) -> float:
        """Seconds from the beginning of the first life to the last moment that the newest one accounts for."""
        return self.lives[-1].said_unix_s - self.lives[0].began_unix_s if self.lives else 0.0

    def seconds(self) -> dict[str, float]:
        """Return the wall seconds by cause, with ``away``; they add up to ``wall_s`` if the machines' clocks agree."""
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
