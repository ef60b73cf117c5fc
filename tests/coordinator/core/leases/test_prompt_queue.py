from __future__ import annotations

from coordinator.core.events.actions import SupplyPrompts
from coordinator.core.leases.prompt_queue import PromptQueue
from tests.coordinator.core_world import prompt


def test_one_request_at_a_time_up_to_the_target() -> None:
    queue = PromptQueue(groups_per_step=2, ahead_max=256)
    assert queue.ask(needed=100) == [SupplyPrompts(4)]
    assert queue.ask(needed=100) == []
    queue.supplied([prompt(number) for number in range(4)])
    assert queue.ask(needed=100) == []
    assert [queue.take(), queue.take()] == [prompt(0), prompt(1)]
    assert queue.ask(needed=100) == [SupplyPrompts(2)]


def test_never_more_than_can_still_be_used_or_the_bound() -> None:
    assert PromptQueue(groups_per_step=2, ahead_max=256).ask(needed=3) == [SupplyPrompts(3)]
    assert PromptQueue(groups_per_step=2, ahead_max=256).ask(needed=0) == []
    assert PromptQueue(groups_per_step=1000, ahead_max=256).ask(needed=9999) == [SupplyPrompts(256)]


def test_an_exhausted_source_is_not_asked_again() -> None:
    queue = PromptQueue(groups_per_step=2, ahead_max=256)
    queue.ask(needed=100)
    queue.supplied([prompt(0)])
    assert queue.exhausted
    assert queue.take() == prompt(0)
    assert queue.take() is None
    assert queue.ask(needed=100) == []
