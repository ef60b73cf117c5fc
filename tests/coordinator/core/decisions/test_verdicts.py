"""Test what follows from verdicts: rewards, retries, dropped groups, and the pause while scoring fails."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from coordinator.core.events.actions import (
    Action,
    CloseAttempt,
    CloseGroup,
    Note,
    RevokeLeases,
    ScoreRollout,
    SendLeases,
    StoreRollout,
)
from coordinator.core.events.events import RolloutScored, RolloutStored, ScoringFailed, Tick
from coordinator.core.leases.scoring_book import ATTEMPTS_MAX, SCORES_TO_RESUME, VERDICTS_LEAST
from rollcast.wire.ids import RolloutId
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import World, only, received, rollout, wants


class Scoring:
    """A world in which the test gives the verdicts; each peer holds a lease of two samples of one group."""

    def __init__(self, groups: int = 1, failed_share_max: float = 0.5) -> None:
        self.world = World(groups_per_step=groups, scoring_failed_share_max=failed_share_max)
        peers = "abcdefgh"[:groups]
        self.world.start(*peers)
        self.leases = []
        self.asked: list[ScoreRollout] = []
        for peer in peers:
            self.world.handle(wants(peer, 2))
            for lease, slot in self.world.take(peer):
                self.leases.append((lease, slot))
                item = rollout(lease, slot.sample_index, peer=peer)
                (stored,) = only(self.handle(received(peer, len(self.leases), item)), StoreRollout)
                self.handle(RolloutStored(stored.rollout_id))
        assert len(self.leases) == 2 * groups

    def handle(self, event: object) -> list[Action]:
        actions = self.world.core.handle(event, self.world.now)  # type: ignore[arg-type]
        self.asked += only(actions, ScoreRollout)
        return actions

    def fail(self, number: int, *, retryable: bool = True) -> list[Action]:
        return self.handle(ScoringFailed(RolloutId(number), "timeout", "too slow", retryable))

    def ids(self) -> list[int]:
        """Return the rollouts that were to be scored since the last call."""
        asked, self.asked = self.asked, []
        return [one.rollout_id for one in asked]

    def tick(self, at: float) -> list[Action]:
        self.world.now = at
        return self.handle(Tick())

    def rewards(self) -> Sequence[float | None]:
        return [filling.reward for group in self.world.core.state.book for filling in group.fillings()]

    def dropped(self) -> dict[str, int]:
        return self.world.core.status(self.world.now).rollouts.dropped


def test_a_failure_is_retried_and_is_no_reward() -> None:
    scoring = Scoring()
    scoring.ids()
    actions = scoring.fail(1)
    assert actions == [
        Note("scoring_failed", "rollout 1", "timeout: too slow"),
        ScoreRollout(RolloutId(1), "problem-0", pack_ids((5, 1))),
    ]
    assert scoring.rewards() == [None, None]
    scoring.handle(RolloutScored(RolloutId(1), 1.0))
    assert scoring.rewards() == [1.0, None]
    assert scoring.handle(RolloutScored(RolloutId(1), 0.5)) == []


def test_the_last_failure_drops_the_group() -> None:
    scoring = Scoring()
    for _ in range(ATTEMPTS_MAX - 1):
        assert only(scoring.fail(1), CloseGroup) == []
    actions = scoring.fail(1)
    lease = scoring.leases[0][0]
    assert actions[1:5] == [
        Note("unscorable", f"group {lease.group_id}", "timeout: too slow"),
        CloseAttempt(lease.lease_id, 0, "unscorable"),
        CloseAttempt(lease.lease_id, 1, "unscorable"),
        CloseGroup(lease.group_id),
    ]
    assert scoring.dropped() == {"unscorable": 2}
    assert scoring.fail(2) == []  # its sibling's verdict comes too late to matter
    status = scoring.world.core.status(0.0).scoring
    assert (status.failures, status.unscorable_groups, status.waiting) == ({"timeout": ATTEMPTS_MAX}, 1, 0)


def test_slots_in_flight_of_a_dropped_group_are_revoked() -> None:
    world = World()
    world.start("a")
    world.handle(wants("a", 2))
    (lease, _), _ = world.take("a")
    world.core.handle(received("a", 1, rollout(lease, 0)), 0.0)
    world.core.handle(RolloutStored(RolloutId(1)), 0.0)
    actions = world.core.handle(ScoringFailed(RolloutId(1), "exception", "", False), 0.0)
    assert CloseAttempt(lease.lease_id, 1, "unscorable") in actions
    assert only(actions, RevokeLeases) != []


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_a_failure(reward: float) -> None:
    scoring = Scoring()
    scoring.handle(RolloutScored(RolloutId(1), reward))
    assert scoring.dropped() == {"unscorable": 2}


def outage(groups: int = 4) -> Scoring:
    """Return a world in which scoring is paused: each of eight rollouts failed once."""
    scoring = Scoring(groups)
    for number in range(1, VERDICTS_LEAST):
        scoring.fail(number)
    scoring.ids()
    assert [one.kind for one in only(scoring.fail(VERDICTS_LEAST), Note)] == ["scoring_failed", "scoring_paused"]
    return scoring


def test_an_outage_drops_nothing_and_stops_leases() -> None:
    scoring = outage()
    assert only(scoring.handle(wants("a", 2)), SendLeases) == []
    for _ in range(ATTEMPTS_MAX):
        for number in range(1, 9):
            scoring.fail(number)
    assert scoring.dropped() == {}
    assert scoring.world.core.status(0.0).scoring.paused == "timeout: too slow"


def test_one_rollout_at_a_time_is_tried_until_scoring_works_again() -> None:
    scoring = outage()
    for number in range(1, 8):
        scoring.fail(number)  # what was with the scorer when the pause began
    scoring.ids()
    scoring.tick(0.5)
    assert scoring.ids() == []
    scoring.tick(1.0)
    (first,) = scoring.ids()
    scoring.tick(30.0)
    assert scoring.ids() == []  # the trial is under way
    scoring.fail(first)
    scoring.tick(31.0)
    (second,) = scoring.ids()
    assert second != first
    tried = second
    for _ in range(SCORES_TO_RESUME - 1):
        scoring.handle(RolloutScored(RolloutId(tried), 1.0))
        (tried,) = scoring.ids()
    actions = scoring.handle(RolloutScored(RolloutId(tried), 1.0))
    assert only(actions, Note) == [Note("scoring_resumed", "run", "after 31 s")]
    assert len(scoring.ids()) == 8 - SCORES_TO_RESUME
    assert scoring.world.core.status(31.0).scoring.paused == ""


def test_a_failure_without_a_retry_is_no_outage() -> None:
    scoring = Scoring(groups=8)
    for number in range(1, 17, 2):
        scoring.fail(number, retryable=False)
    assert scoring.world.core.status(0.0).scoring.paused == ""
    assert scoring.dropped() == {"unscorable": 16}


def test_a_share_of_1_never_pauses() -> None:
    scoring = Scoring(groups=4, failed_share_max=1.0)
    for number in range(1, 9):
        scoring.fail(number)
    assert scoring.world.core.status(0.0).scoring.paused == ""


def test_without_rollouts_to_try_the_pause_ends() -> None:
    scoring = outage()
    for group in list(scoring.world.core.state.book):
        scoring.world.core.state.drop_group(group, ["stale"] * 2, "group_stale")
    for number in range(1, 8):
        scoring.fail(number)
    assert [one.kind for one in only(scoring.tick(1.0), Note)] == ["scoring_resumed"]
    assert only(scoring.handle(wants("a", 2)), SendLeases) != []
