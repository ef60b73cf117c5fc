"""Make findings, and a world whose learner has reported some."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.events.audit_events import RolloutAudit
from coordinator.core.events.events import StepFinished
from rollcast.wire.ids import PeerId, RolloutId, Step
from tests.coordinator.core_world import World, held, joined


def finding(number: int, peer: str = "a", *, beyond: int = 0, far: int = 0) -> RolloutAudit:
    worst = 0.5 if far else 0.02 * bool(beyond)
    counts = (20, beyond, far)
    return RolloutAudit(RolloutId(number), PeerId(peer), *counts, worst, 0.01, 3, "jax-cpu", trained=not beyond)


def audited_world(*found: RolloutAudit) -> World:
    world = World()
    world.start()
    for name in ("a", "b"):
        world.handle(replace(joined(name), invite="ann"))
        world.handle(held(name, 0))
    world.handle(StepFinished(Step(1), {}, found))
    return world
