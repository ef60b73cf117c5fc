"""Decide which disturbances a fleet gets, and when; the clock and the random source are arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

#: What may happen: to one peer, or (with node 0) to the coordinator.
What = Literal["kill", "leave", "freeze", "libp2p_dies", "coordinator_dies"]
#: What puts it right.
Undo = Literal["start", "join", "thaw", "coordinator_starts"]

_WEIGHTS: dict[What, int] = {"kill": 4, "leave": 3, "freeze": 4, "libp2p_dies": 3, "coordinator_dies": 1}
#: Seconds until it is put right, at least and at most.
_LASTS_S: dict[What, tuple[float, float]] = {
    "kill": (1.0, 15.0),
    "leave": (5.0, 40.0),
    "freeze": (2.0, 25.0),
    "coordinator_dies": (2.0, 20.0),
}
_UNDO: dict[What, Undo] = {
    "kill": "start",
    "leave": "join",
    "freeze": "thaw",
    "coordinator_dies": "coordinator_starts",
}


@dataclass(frozen=True, slots=True)
class Act:
    """A disturbance of the peer of a node, or its end, to be carried out now."""

    what: What | Undo
    node: int


@dataclass(slots=True)
class Churn:
    """A random sequence of disturbances, each of which is undone.

    Args:
        random: source of randomness.
        every_s: mean seconds between two disturbances.
        coming_and_going: nodes whose peers may be killed or leave; the others stay, so that they can be watched.
        staying: nodes whose peers are never killed and never leave.
        at_once: most peers disturbed at the same time.
        settle_s: seconds without a disturbance after a restart of the coordinator.
    """

    random: Random
    every_s: float
    coming_and_going: Sequence[int]
    staying: Sequence[int]
    at_once: int = 3
    settle_s: float = 20.0
    done: Counter[str] = field(default_factory=Counter)
    _next_s: float | None = None
    _pending: dict[int, tuple[float, Undo]] = field(default_factory=dict)

    @property
    def disturbed(self) -> frozenset[int]:
        """Return the nodes that are disturbed now; 0 is the coordinator."""
        return frozenset(self._pending)

    def due(self, now_s: float) -> list[Act]:
        """Return the disturbances, and ends of disturbances, that are due."""
        acts = self._put_right(lambda at_s: at_s <= now_s)
        if any(act.what == "coordinator_starts" for act in acts):
            self._next_s = max(self._next_s or 0.0, now_s + self.settle_s)
        if self._next_s is None:
            self._next_s = now_s + self._draw_pause_s()
        if now_s >= self._next_s:
            self._next_s = now_s + self._draw_pause_s()
            acts += self._disturb(now_s)
        self.done.update(act.what for act in acts)
        return acts

    def calm(self) -> list[Act]:
        """Return the acts that end all disturbances; the caller carries them out."""
        return self._put_right(lambda _: True)

    def _put_right(self, ripe: Callable[[float], bool]) -> list[Act]:
        nodes = [node for node, (at_s, _) in self._pending.items() if ripe(at_s)]
        return [Act(self._pending.pop(node)[1], node) for node in nodes]

    def _disturb(self, now_s: float) -> list[Act]:
        if 0 in self._pending or len(self._pending) >= self.at_once:
            return []
        what = self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        if what == "coordinator_dies":
            if self._pending:  # a peer that starts while the coordinator is down could not join
                return []
            node = 0
        else:
            nodes = self.coming_and_going if what in ("kill", "leave") else [*self.coming_and_going, *self.staying]
            free = [node for node in nodes if node not in self._pending]
            if not free:
                return []
            node = self.random.choice(free)
        if what in _LASTS_S:
            self._pending[node] = (now_s + self.random.uniform(*_LASTS_S[what]), _UNDO[what])
        return [Act(what, node)]

    def _draw_pause_s(self) -> float:
        return self.random.expovariate(1.0 / self.every_s)
