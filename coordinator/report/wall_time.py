"""Account for the learner's wall time: training, waiting (for which stage and peer), publishing, absence ..."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from coordinator.core.members.learner_lives import LEARNER_LIVES, LearnerLives
from coordinator.core.members.progress import WAITED
from coordinator.ledger.event_archive import read_segment, segments
from coordinator.ledger.sql import RunReader
from coordinator.stores.reader import reading
from rollcast.runtime.run_folder import RunFolder

#: Parts of a step as the learner reports them, and their names here.
_STEP_PARTS = {
    "train_s": "training",
    "behaviour_s": "behaviour log-probabilities",
    "publish_s": "publishing",
    "checkpoint_s": "checkpointing",
    "other_s": "rest of the steps",
}
CAUSES = {
    "starting": "starting",
    "warm_start": "warm start",
    "evaluating": "evaluating",
    "publishing": "publishing",
    "compile": "compiling",
    "replay": "replaying after a restart",
    "finishing": "finishing",
    "away": "no learner running",
}
"""What else the learner's time goes to, in words, by the key of LearnerLives.seconds."""


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of one cause. ``whose``: seconds that the learner waited for a peer, by peer id, longest first."""

    cause: str
    seconds: float
    share: float  # of the wall time
    whose: dict[str, float]


@dataclass(frozen=True, slots=True)
class Doing:
    """What the learner was doing at its newest report.

    Args:
        detail: how far it is, in words.
        since_unix_s, at_unix_s: when it began with this phase, and the moment that the report accounts for.
    """

    phase: str
    detail: str
    since_unix_s: float
    at_unix_s: float


@dataclass(frozen=True, slots=True)
class Account:
    """The learner's wall time by cause, largest first; ``unaccounted`` is the share that no cause explains."""

    wall_s: float
    steps: int
    shares: tuple[Share, ...]
    unaccounted: float  # share of the wall time
    doing: Doing | None = None  # None if the learner's newest life did not report it

    @property
    def utilisation(self) -> float:
        """Return the share of the wall time that went into training."""
        return sum(one.share for one in self.shares if one.cause == "training")


@dataclass(slots=True)
class _Sum:
    seconds: float = 0.0
    whose: dict[str, float] | None = None

    def add(self, seconds: float, whom: str = "") -> None:
        self.seconds += seconds
        if whom:
            self.whose = self.whose or {}
            self.whose[whom] = self.whose.get(whom, 0.0) + seconds


def account(folder: RunFolder, *, since_unix_s: float | None = None) -> Account | None:
    """Sum up the run's wall time by cause; None if no learner has reported yet.

    With ``since_unix_s`` only steps reported after it count, and time outside steps is one cause.

    Raises:
        StoreError: the ledger cannot be read.
    """
    with reading(folder) as connection:
        lives = _lives(connection)
        steps = _steps(connection, since_unix_s or 0.0)
        waits = _waits(connection, folder.events)
    if not lives.lives:
        return None
    last = lives.lives[-1]
    doing = Doing(last.phase, last.detail, last.phase_since_unix_s, last.said_unix_s) if last.phase else None
    if since_unix_s is None:
        return replace(_account(lives.wall_s, lives.seconds(), steps, waits), doing=doing)
    wall_s = max(0.0, last.said_unix_s - max(since_unix_s, lives.lives[0].began_unix_s))
    return replace(_account(wall_s, None, steps, waits), doing=doing)


def _lives(connection: RunReader) -> LearnerLives:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (LEARNER_LIVES,)).fetchone()
    return LearnerLives() if row is None else LearnerLives.from_json(row[0])


def _steps(connection: RunReader, since_unix_s: float) -> dict[int, dict[str, float]]:
    """Return the learner's figures by step."""
    rows = connection.execute("SELECT step, figures FROM steps WHERE reported_unix_s >= ?", (since_unix_s,))
    return {step: json.loads(figures) for step, figures in rows}


def _waits(connection: RunReader, archive: Path) -> dict[int, list[tuple[str, str, float]]]:
    """Return the causes of each step's wait: stage, peer, seconds. Those of a long run's beginning are archived."""
    rows = connection.execute("SELECT event_order, subject, detail FROM events WHERE kind = ?", (WAITED,)).fetchall()
    notes: dict[int, tuple[str, str]] = {order: (subject, detail) for order, subject, detail in rows}
    for segment in segments(archive):
        notes |= {one.order: (one.subject, one.detail) for one in read_segment(segment) if one.kind == WAITED}
    waits: dict[int, list[tuple[str, str, float]]] = {}
    for subject, detail in notes.values():
        waits.setdefault(int(subject.split()[1]), []).extend(tuple(one) for one in json.loads(detail))
    return waits


def _account(
    wall_s: float,
    lived: Mapping[str, float] | None,
    steps: Mapping[int, Mapping[str, float]],
    waits: Mapping[int, list[tuple[str, str, float]]],
) -> Account:
    sums: dict[str, _Sum] = {}

    def add(cause: str, seconds: float, whom: str = "") -> None:
        sums.setdefault(cause, _Sum()).add(seconds, whom)

    for step, figures in steps.items():
        if figures.get("replayed"):  # its time counts as replaying
            continue
        for name, cause in _STEP_PARTS.items():
            add(cause, figures.get(name, 0.0))
        for cause, seconds, whom in _split(figures.get("wait_s", 0.0), waits.get(step, [])):
            add(cause, seconds, whom)
    if lived is None:
        add("compiling", sum(figures.get("compile_s", 0.0) for figures in steps.values()))
        add("outside steps", wall_s - sum(one.seconds for one in sums.values()))
    else:
        for name, seconds in lived.items():
            if name != "steps":
                add(CAUSES.get(name, name), seconds)
    return _shares(wall_s, len(steps), sums)


def _split(wait_s: float, causes: Iterable[tuple[str, str, float]]) -> Iterable[tuple[str, float, str]]:
    """Split the learner's own measurement of a wait by the causes that the coordinator saw.

    The rest is the way of the request, and of the batch, to the learner.
    """
    known = list(causes)
    seen_s = sum(seconds for _, _, seconds in known)
    scale = min(1.0, wait_s / seen_s) if seen_s > 0.0 else 0.0
    shared = [(f"waiting: {stage}", scale * seconds, whom) for stage, whom, seconds in known]
    return [*shared, ("waiting: calls to the coordinator", wait_s - scale * seen_s, "")]


def _shares(wall_s: float, steps: int, sums: Mapping[str, _Sum]) -> Account:
    shares = [
        Share(cause, one.seconds, one.seconds / wall_s if wall_s else 0.0, _longest_first(one.whose or {}))
        for cause, one in sums.items()
        if one.seconds > 0.0
    ]
    shares.sort(key=lambda share: -share.seconds)
    # Two processes measure the causes: by rounding and by their clocks the sum may exceed the wall time a little.
    unaccounted = max(0.0, 1.0 - sum(share.share for share in shares)) if wall_s else 0.0
    return Account(wall_s, steps, tuple(shares), unaccounted)


def _longest_first(whose: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(whose.items(), key=lambda item: -item[1]))
