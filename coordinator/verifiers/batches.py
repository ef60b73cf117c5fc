"""Score batches of completions, at once where their checks allow it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coordinator.tasks.checks.checker import Checker, Item, Outcome, outcome_of
from coordinator.tasks.checks.task import TaskAdapter
from coordinator.tasks.multi_task import Mixed
from coordinator.tasks.rows import Rows

Task = TaskAdapter | Mixed


def checks_together(task: Task) -> bool:
    """Whether completions of the task are to be scored in batches; known after the task has warmed up."""
    adapters = [part.adapter for part in task.parts] if isinstance(task, Mixed) else [task]
    return any(isinstance(one, Rows) and one.checker.together for one in adapters)


async def verify_many(task: Task, items: Sequence[Item], timeout_s: float) -> list[Outcome]:
    """Return the outcomes of completions in their order; see Checker.check_many for those that are scored at once."""
    outcomes: list[Outcome | None] = [None] * len(items)
    batches: dict[int, tuple[Checker, list[int], list[Item]]] = {}
    for index, (problem, text) in enumerate(items):
        adapter, own = task.part_of(problem) if isinstance(task, Mixed) else (task, problem)
        if isinstance(adapter, Rows) and adapter.checker.together:
            _, places, batch = batches.setdefault(id(adapter), (adapter.checker, [], []))
            places.append(index)
            batch.append((own, text))
        else:
            outcomes[index] = outcome_of(adapter.verify, own, text)
    found = await asyncio.gather(*(checker.check_many(batch, timeout_s) for checker, _, batch in batches.values()))
    for (_, places, _), scores in zip(batches.values(), found, strict=True):
        for place, score in zip(places, scores, strict=True):
            outcomes[place] = score
    return [one for one in outcomes if one is not None]
