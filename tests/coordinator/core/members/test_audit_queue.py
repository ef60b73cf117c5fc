"""Which rollouts the learner judges although it does not train on them, and how newcomers prove themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.events.actions import CloseAttempt, ServeBatch
from coordinator.core.events.audit_events import RolloutAudit, Unseen
from coordinator.core.events.events import BatchRequested, StepFinished
from coordinator.core.members.audit_book import PROBATION_ROLLOUTS, AuditBook
from coordinator.core.members.audit_queue import SHARE_LEAST, WAITING_MAX, AuditQueue
from rollcast.wire.ids import PeerId, RolloutId, Step, Version
from tests.coordinator.core_world import World, held, joined, only, wants

A = PeerId("a")


def unseen(number: int, version: int = 9, peer: str = "a") -> Unseen:
    return Unseen(RolloutId(number), PeerId(peer), Version(version))


def chosen(secret: int, share: float, count: int = 4000) -> set[int]:
    queue, found = AuditQueue(secret), set[int]()
    for number in range(count):
        queue.offer(unseen(number), share)
        found |= {one.rollout_id for one in queue.take(4, Version(0))}
    return found


def test_the_share_is_kept_and_nobody_can_predict_which_ones_are_chosen() -> None:
    assert chosen(7, 1.0, 100) == set(range(100))
    first, second = chosen(7, SHARE_LEAST), chosen(8, SHARE_LEAST)
    assert 0.8 * SHARE_LEAST < len(first) / 4000 < 1.2 * SHARE_LEAST
    assert len(first & second) < len(first) / 4, "the choice follows from the run's secret"


def test_few_are_judged_beside_a_batch_and_none_of_a_version_that_is_gone() -> None:
    queue = AuditQueue(7)
    for number in range(WAITING_MAX + 5):
        queue.offer(unseen(number, version=number), 1.0)
    assert len(queue) == WAITING_MAX
    assert [one.rollout_id for one in queue.take(40, Version(100))] == list(range(100, 110))
    queue.offer(unseen(500, peer="b"), 1.0)
    queue.discard(A)
    assert [one.rollout_id for one in queue.take(1, Version(0))] == [500]


def finding(rollout_id: int, peer: str = "a", beyond: int = 0) -> RolloutAudit:
    return RolloutAudit(RolloutId(rollout_id), PeerId(peer), 20, beyond, 0, 0.0, 0.5, 0)


def test_newcomers_are_judged_in_full_and_then_less_with_each_good_rollout_in_a_row() -> None:
    book = AuditBook()

    def judged(step: int, rollouts: int, beyond: int = 0, peer: str = "a") -> float:
        found = [finding(number, peer, beyond) for number in range(rollouts)]
        book.add(Step(step), found, lambda _: "invite")
        return book.share_audited(PeerId(peer), "invite")

    assert judged(1, PROBATION_ROLLOUTS - 1) == 1.0
    assert judged(2, 1) == SHARE_LEAST
    assert book.share_audited(PeerId("new"), "invite") == 1.0, "a new identity of an old invite"
    assert judged(3, 1, beyond=1) == 1.0
    assert judged(4, 4) == 1 / 4
    assert judged(5, 1, peer="new") == 1.0


def dropping_world(**changes: Any) -> World:
    """Return a world in which a group without advantage is dropped for each batch: all rewards are the same."""
    world = World(drop_without_advantage=True, drops_per_step_max=1, **changes)
    world.start("a")
    return world


def test_dropped_groups_are_judged_beside_the_next_batch() -> None:
    world = dropping_world()
    actions = world.handle(BatchRequested(Step(0)))
    for _ in range(3):
        actions += world.handle(wants("a", 4)) + world.finish("a")
    assert "no_advantage" in {one.reason for one in only(actions, CloseAttempt)}
    (served,) = only(actions, ServeBatch)
    assert [(one.peer_id, one.evaluated) for one in served.unseen] == [(A, None)] * 2
    (again,) = only(world.handle(BatchRequested(Step(0))), ServeBatch)
    assert (again.replayed, again.unseen) == (True, served.unseen), "the learner may not have received it"
    world.handle(BatchRequested(Step(1)))
    for _ in range(3):
        world.handle(wants("a", 4))
        world.finish("a")
    assert world.core.recorded_batches == 2
    (older,) = only(world.handle(BatchRequested(Step(0))), ServeBatch)
    assert older.unseen == (), "of an older batch the learner has reported its findings"


@pytest.mark.parametrize(("judged", "on_trial"), [(0, 2), (PROBATION_ROLLOUTS, 0)])
def test_an_invite_on_probation_holds_a_small_share_although_it_delivers(judged: int, on_trial: int) -> None:
    """Where another invite has passed; what its members delivered may be anything until it was judged."""
    world = World()
    world.start()
    for name, invite in (("old", "first"), ("new", "second")):
        world.handle(replace(joined(name), invite=invite))
        world.handle(held(name, 0))
    world.handle(wants("new", 1))
    world.finish("new")
    found = [finding(number, "old") for number in range(PROBATION_ROLLOUTS)]
    found += [finding(100 + number, "new") for number in range(judged)]
    world.handle(StepFinished(Step(1), {}, tuple(found)))
    world.handle(wants("new", 2))
    assert world.core.state.book.held_count(PeerId("new")) == 2
    assert world.core.state.book.shares.on_trial["second"] == on_trial
