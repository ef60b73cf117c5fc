"""Combine several tasks into one for verifying and for their wording; mixture.py samples from the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.tasks.checks.task import Problem, Score, TaskAdapter
from coordinator.tasks.wording import PIECES_MAX


@dataclass(frozen=True, slots=True)
class Part:
    """One task of a mixture; ``name`` is empty if it is the only one."""

    name: str
    adapter: TaskAdapter


class Mixed:
    """Named parts; a problem's id begins with its part's name and a slash."""

    name = "mixture"

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self._by_name = {part.name: part.adapter for part in parts}

    @property
    def starts_processes(self) -> bool:
        """Return whether verifying the problems of any part starts processes."""
        return any(part.adapter.starts_processes for part in self.parts)

    def wording(self) -> tuple[str, ...]:
        """Return the parts' pieces, an equal number of each at most."""
        each = PIECES_MAX // len(self.parts)
        return tuple(dict.fromkeys(piece for part in self.parts for piece in part.adapter.wording()[:each]))

    def characters(self) -> str:
        """Return all characters that any part uses: a piece of one part may be spelled out in another."""
        found: set[str] = set().union(*(part.adapter.characters() for part in self.parts))
        return "".join(sorted(found.union(*self.wording())))

    def warm_up(self) -> None:
        """Warm up every part; see TaskAdapter."""
        for part in self.parts:
            part.adapter.warm_up()

    def verify(self, problem: Problem, completion_text: str) -> Score:
        """Score a completion with the verifier of the problem's part; of the first part if the id names none."""
        adapter, own = self.part_of(problem)
        return adapter.verify(own, completion_text)

    def part_of(self, problem: Problem) -> tuple[TaskAdapter, Problem]:
        """Return the part that a problem is of, and the problem under the part's own id."""
        name, _, rest = problem.problem_id.partition("/")
        adapter = self._by_name.get(name)
        return (self.parts[0].adapter, problem) if adapter is None else (adapter, replace(problem, problem_id=rest))


def named(part: str, problem: Problem) -> Problem:
    """Return the problem with its part's name in front of its id."""
    return replace(problem, problem_id=f"{part}/{problem.problem_id}") if part else problem
