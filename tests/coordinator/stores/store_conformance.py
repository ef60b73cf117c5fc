"""Check what every store of a run must do: subclass StoreConformance in a test module for each store."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from coordinator.core.events.actions import (
    CloseGroup,
    CommitTogether,
    DropTurns,
    Note,
    RecordEpoch,
    RecordQuarantine,
    StoreEpisode,
)
from coordinator.core.events.events import Prompt
from coordinator.core.events.restored import RestoredAttempt, RestoredFinished, RestoredGroup, RestoredRollout
from coordinator.core.leases.drop_counts import NEXT_TURN
from coordinator.ledger.sql_access import AuditRow
from coordinator.ledger.store import CompactingStore, HighWater, ProblemReward, RunStore, StoreCounts, StoredVersion
from coordinator.tasks.checks.task import Score
from rollcast.runtime.errors import JoinRefused, StoreError
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollout_messages import rollout_to_pb
from rollcast.wire.rollouts import authors_of, observation
from tests.coordinator.stored_work import (
    PEER,
    PROMPT,
    attempt,
    batch,
    close,
    fill,
    group,
    issue,
    rollout,
    score,
    store_rollout,
    store_turn,
)


def live(lease_id: int, sample_index: int = 0) -> RestoredAttempt:
    return RestoredAttempt(LeaseId(lease_id), FencingToken(lease_id), sample_index, PEER)


def epoch(number: int, step_from: int, step_to: int, common_version: int | None) -> RecordEpoch:
    common = None if common_version is None else Version(common_version)
    return RecordEpoch(Epoch(number), Step(step_from), Step(step_to), common)


class StoreConformance(ABC):
    """Each test has a new, empty store."""

    @abstractmethod
    async def open_store(self, folder: Path) -> RunStore:
        """Open the store of this folder, made at the first call; called again after the first one was closed."""

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[RunStore]:
        opened = await self.open_store(tmp_path)
        yield opened
        await opened.close()

    async def opened_again(self, store: RunStore, folder: Path) -> RunStore:
        await store.close()
        return await self.open_store(folder)

    # ---------------------------------------------------------------- once, for ever

    async def test_a_rollout_is_stored_once(self, store: RunStore) -> None:
        await fill(store, 1)
        await issue(store, 2, 3)
        for repeated in (
            [store_rollout(9, rollout(1))],  # the attempt is filled
            [store_rollout(1, rollout(2, group_id=2))],  # the rollout's id is in use
            [store_rollout(2, rollout(2, group_id=2)), store_rollout(4, rollout(4, group_id=4))],
        ):
            with pytest.raises(StoreError, match="contradicts"):
                await store.store_rollouts(repeated)
        assert (await store.counts()).accepted == 1  # the first half of the last one was undone
        await store.store_rollouts([store_rollout(2, rollout(2, group_id=2)), store_rollout(3, rollout(3, group_id=3))])
        assert (await store.counts()).accepted == 3

    async def test_unissued_rollouts_are_refused(self, store: RunStore) -> None:
        await store.record_group(group(), "{}")
        with pytest.raises(StoreError, match="contradicts"):
            await store.store_rollouts([store_rollout(1, rollout(1))])
        with pytest.raises(StoreError, match="contradicts"):
            await store.record_attempt(attempt(1, group_id=2))
        await store.record_attempt(attempt(1))
        with pytest.raises(StoreError, match="contradicts"):
            await store.record_attempt(attempt(1))

    async def test_the_first_rollout_closes_its_slot(self, store: RunStore) -> None:
        await issue(store, 1)
        await store.record_attempt(attempt(2, group_id=1))
        with pytest.raises(StoreError, match="contradicts"):
            await store.record_attempt(attempt(3, group_id=1))  # I6: at most two at a time
        await store.store_rollouts([store_rollout(1, rollout(2, group_id=1))])
        assert (await store.counts()).dropped == {"late_duplicate": 1}
        await store.close_attempt(close(1, "late_duplicate"))  # to drop it once more is no error
        assert (await store.counts()).dropped == {"late_duplicate": 1}
        with pytest.raises(StoreError, match="contradicts"):
            await store.store_rollouts([store_rollout(2, rollout(1))])
        assert await store.rollout(RolloutId(1)) == rollout_to_pb(rollout(2, group_id=1))
        assert await store.rollout(RolloutId(2)) is None

    async def test_closed_attempt_refuses_a_rollout(self, store: RunStore) -> None:
        await issue(store, 1)
        await store.close_attempt(close(1, "lease_expired"))
        with pytest.raises(StoreError, match="contradicts"):
            await store.store_rollouts([store_rollout(1, rollout(1))])
        await store.record_attempt(attempt(2, group_id=1))
        await store.store_rollouts([store_rollout(1, rollout(2))])
        assert await store.counts() == StoreCounts(2, 1, 0, 1, {"lease_expired": 1})

    async def test_an_attempt_is_closed_once(self, store: RunStore) -> None:
        await score(store, 1)
        await store.close_attempt(close(1))
        for lease_id in (1, 99):
            with pytest.raises(StoreError, match="not open"):
                await store.close_attempt(close(lease_id))
        with pytest.raises(StoreError):
            await store.record_score(RolloutId(1), Score(1.0, True))

    async def test_turns_come_back_until_their_episode_is_stored(self, store: RunStore, tmp_path: Path) -> None:
        await store.record_group(replace(group(), environment="guess", agents=2), "{}")
        await store.record_attempt(attempt(1))
        said = observation("tool", (70_000, 8))
        await store.store_turn(store_turn(0, 1, None))
        with pytest.raises(StoreError, match="contradicts"):
            await store.store_turn(store_turn(0, 1, None))  # a turn is stored once
        await store.close_attempt(close(1, NEXT_TURN))
        with pytest.raises(StoreError, match="contradicts"):
            await store.store_turn(store_turn(1, 1, said))  # its attempt is over
        await store.record_attempt(attempt(2))
        await store.store_turn(store_turn(1, 2, said))
        again = await self.opened_again(store, tmp_path)
        (restored,) = await again.open_groups()
        assert (restored.prompt.environment, restored.prompt.agents) == ("guess", 2)
        assert [(one.lease_id, one.observation) for one in restored.turns[0]] == [(1, None), (2, said)]
        assert [one.generated for one in restored.turns[0]] == [rollout(1).segments, rollout(2).segments]
        assert [(one.lease_id, one.stored) for one in await again.finished_attempts(9)] == [(1, True)]
        whole = replace(rollout(2), segments=(*rollout(1).segments, said, *rollout(2).segments))
        await again.store_episode(StoreEpisode(RolloutId(1), PEER, "sum:1", whole, 0.5), exact=False)
        (restored,) = await again.open_groups()
        assert restored.turns == {}
        assert [(one.reward, one.scored) for one in restored.rollouts] == [(0.5, True)]
        assert (await again.counts()).dropped == {NEXT_TURN: 1}
        await again.record_batch(batch(0, 1))
        (entry,) = await again.batch(Step(0))
        assert entry.agents == 2
        assert [one.loss_mask for one in entry.rollout.segments] == [b"\1" * 4, b"\0\0", b"\1" * 4]

    async def test_changes_of_a_game_are_made_together_or_not_at_all(self, store: RunStore) -> None:
        await store.record_group(replace(group(), environment="guess"), "{}")
        for lease_id in (1, 2):
            await store.record_attempt(attempt(lease_id))
        await store.store_turn(store_turn(0, 1, None))
        closed, unknown = close(1, "stale"), close(9, "stale")
        with pytest.raises(StoreError, match="sample 0 of lease 9 is not open"):
            await store.commit_together(CommitTogether((closed, DropTurns(GroupId(1), 0), unknown)))
        (restored,) = await store.open_groups()
        assert {one.lease_id for one in restored.live} == {1, 2}
        assert len(restored.turns[0]) == 1
        ended = StoreEpisode(RolloutId(1), PEER, "sum:1", rollout(2), 0.5)
        await store.commit_together(CommitTogether((closed, DropTurns(GroupId(1), 0), ended)))
        (restored,) = await store.open_groups()
        assert (restored.live, restored.turns) == ((), {})
        assert [(one.rollout_id, one.reward) for one in restored.rollouts] == [(1, 0.5)]
        assert (await store.counts()).dropped == {"stale": 1}

    async def test_turns_of_an_episode_that_begins_anew_are_deleted(self, store: RunStore) -> None:
        await issue(store, 1)
        await store.store_turn(store_turn(0, 1, None))
        await store.drop_turns(DropTurns(GroupId(1), 0))
        assert (await store.open_groups())[0].turns == {}
        await store.close_attempt(close(1))
        await store.close_group(CloseGroup(GroupId(1)))

    # ---------------------------------------------------------------- batches

    async def test_the_parts_of_a_batchs_rewards_have_means(self, store: RunStore) -> None:
        await issue(store, 1)
        await store.record_attempt(attempt(2, group_id=1, sample_index=1))
        await store.store_rollouts([store_rollout(1, rollout(1)), store_rollout(2, rollout(2, sample_index=1))])
        await store.record_score(RolloutId(1), Score(1.0, True, parts={"format": 1.0, "correct": 0.5}))
        await store.record_score(RolloutId(2), Score(0.0, False, parts={"format": 0.0}))
        await store.record_batch(batch(0, 1, 2))
        assert await store.batch_parts(Step(0)) == {"correct": 0.5, "format": 0.5}
        assert await store.batch_parts(Step(1)) == {}

    async def test_a_batch_comes_back_as_it_was_recorded(self, store: RunStore, tmp_path: Path) -> None:
        await score(store, 10, 11, 12)
        assert await store.recorded_batches() == 0
        await store.record_batch(batch(4, 12, 10))
        again = await self.opened_again(store, tmp_path)
        entries = await again.batch(Step(4))
        assert [(entry.rollout_id, entry.group_id, entry.reward, entry.exact) for entry in entries] == [
            (12, 12, 1.2, False),
            (10, 10, 1.0, True),
        ]
        assert entries[0].prompt_token_ids == PROMPT
        assert entries[0].rollout == rollout_to_pb(rollout(12, group_id=12))
        assert [one.rollout_id for one in await again.batch(Step(4), 1, 5)] == [10]
        assert [one.rollout_id for one in await again.batch(Step(4), 0, 1)] == [12]
        assert (await again.batch_size(Step(4)), await again.batch_size(Step(3))) == (2, 0)
        known = await again.rollouts([RolloutId(11), RolloutId(99), RolloutId(10)])
        assert [(one.rollout_id, one.prompt_token_ids, one.rollout.lease_id) for one in known] == [
            (number, PROMPT, rollout(number, group_id=number).lease_id) for number in (10, 11)
        ], "in a batch or not"
        assert await again.recorded_batches() == 5
        assert await again.batch(Step(3)) == []
        assert await again.mixture_position() == '{"next":12}'
        assert await again.high_water() == HighWater(GroupId(12), RolloutId(12))
        await again.close()

    async def test_no_rollout_is_in_two_batches(self, store: RunStore) -> None:
        await score(store, 1, 2, 3)
        await store.record_batch(batch(0, 1, 2))
        with pytest.raises(StoreError, match="contradicts"):
            await store.record_batch(batch(1, 3, 2))
        with pytest.raises(StoreError, match="already recorded"):
            await store.record_batch(batch(0, 3))
        assert await store.batch(Step(1)) == []
        assert await store.recorded_batches() == 1
        await store.record_batch(batch(1, 3))
        assert (await store.counts()).trained == 3

    async def test_dropped_and_unscored_rollouts_are_not_trained_on(self, store: RunStore) -> None:
        await score(store, 1, 2)
        await fill(store, 3)
        await store.close_attempt(close(2))
        for wrong in (batch(0, 1, 2), batch(0, 1, 3), batch(0, 1, 99)):
            with pytest.raises(StoreError, match="contradicts"):
                await store.record_batch(wrong)
        await store.record_batch(batch(0, 1))
        with pytest.raises(StoreError, match="not open"):
            await store.close_attempt(close(1))

    async def test_a_group_ends_as_a_whole_and_once(self, store: RunStore) -> None:
        await score(store, 1)
        await store.record_attempt(attempt(2, 1, group_id=1))
        for change in (store.record_batch(batch(0, 1)), store.close_group(CloseGroup(GroupId(1)))):
            with pytest.raises(StoreError, match="contradicts"):
                await change
        await store.close_attempt(close(2, "revoked", sample_index=1))
        await store.record_batch(batch(0, 1))
        for change in (store.close_group(CloseGroup(GroupId(1))), store.record_attempt(attempt(3, 1, group_id=1))):
            with pytest.raises(StoreError, match="contradicts"):
                await change
        with pytest.raises(StoreError, match="never opened"):
            await store.close_group(CloseGroup(GroupId(2)))

    async def test_ages_are_counted_at_the_step_of_the_batch(self, store: RunStore) -> None:
        assert await store.trained_ages() == {}
        await score(store, 10, 11, 12, version=2)
        await store.record_batch(batch(4, 12, 10))
        await store.record_batch(batch(5, 11))
        assert await store.trained_ages() == {2: 2, 3: 1}

    async def test_counts_add_up(self, store: RunStore) -> None:
        await score(store, 1, 2, 3, 4, 5)
        await issue(store, 6)
        store.close_attempt(close(3))
        store.close_attempt(close(4, "peer_left"))
        await store.record_batch(batch(0, 1))
        assert await store.counts() == StoreCounts(
            issued=6, accepted=5, trained=1, open=3, dropped={"stale": 1, "peer_left": 1}
        )

    async def test_figures_of_problems_are_kept_with_the_score(self, store: RunStore, tmp_path: Path) -> None:
        await fill(store, 1)
        await fill(store, 2)
        assert await store.problem_rewards() == []
        store.record_score(RolloutId(1), Score(1.0, True), problem=ProblemReward("b", 1, 1.0, 0.0))
        await store.record_score(RolloutId(2), Score(0.0, False), problem=ProblemReward("a", 1, 0.0, 0.0))
        await fill(store, 3)
        await store.record_score(RolloutId(3), Score(0.0, False), problem=ProblemReward("b", 2, 0.5, 0.25))
        again = await self.opened_again(store, tmp_path)
        assert await again.problem_rewards() == [ProblemReward("a", 1, 0.0, 0.0), ProblemReward("b", 2, 0.5, 0.25)]
        await again.close()

    # ---------------------------------------------------------------- what a restart restores

    async def test_open_groups_come_back_whole(self, store: RunStore, tmp_path: Path) -> None:
        await score(store, 1, 2)
        await fill(store, 3)
        await issue(store, 4, 5)
        store.record_attempt(attempt(6, group_id=4))  # a second one at the slot
        store.record_attempt(attempt(7, 1, group_id=3))
        store.close_attempt(close(5, "lease_expired"))
        store.record_batch(batch(0, 1))
        again = await self.opened_again(store, tmp_path)
        prompts = {number: Prompt(f"sum:{number}", PROMPT, f'{{"next":{number}}}') for number in range(1, 6)}
        tokens, by = rollout(3).packed_completion, authors_of(rollout(3).segments)
        assert by
        assert await again.open_groups() == [
            RestoredGroup(
                GroupId(2),
                prompts[2],
                (),
                (RestoredRollout(RolloutId(2), live(2), Version(3), Version(3), True, b"", 0.2, by),),
            ),
            RestoredGroup(
                GroupId(3),
                prompts[3],
                (live(7, 1),),
                (RestoredRollout(RolloutId(3), live(3), Version(3), Version(3), False, tokens, 0.0, by),),
            ),
            RestoredGroup(GroupId(4), prompts[4], (live(4), live(6)), ()),
            RestoredGroup(GroupId(5), prompts[5], (), ()),
        ]
        assert await again.open_problems() == [f'{{"problem":{number}}}' for number in range(2, 6)]
        await again.close_group(CloseGroup(GroupId(5)))
        assert [one.group_id for one in await again.open_groups()] == [2, 3, 4]
        await again.close()

    async def test_finished_attempts_keep_whether_they_were_accepted(self, store: RunStore, tmp_path: Path) -> None:
        await score(store, 1, 2)
        await fill(store, 3)
        await issue(store, 4, 5)
        store.record_batch(batch(0, 1))
        store.close_attempt(close(3))
        store.close_attempt(close(5, "lease_expired"))
        again = await self.opened_again(store, tmp_path)
        over = [
            RestoredFinished(LeaseId(number), 0, PEER, GroupId(number), stored)
            for number, stored in ((1, True), (3, True), (5, False))
        ]
        assert await again.finished_attempts(9) == over
        assert await again.finished_attempts(2) == over[1:]
        await again.close()

    async def test_changes_are_made_in_order_without_waiting(self, store: RunStore) -> None:
        """An attempt and its rollout may be submitted without waiting in between."""
        store.record_group(group(), "{}")
        for number in range(1, 501):
            store.record_attempt(attempt(number, number))
            store.store_rollouts([store_rollout(number, rollout(number, number))])
            if number > 400:
                store.record_score(RolloutId(number - 400), Score(1.0, True, "", {"format": 0.5}))
        assert (await store.counts()).accepted == 500
        stored = await store.rollouts([RolloutId(number) for number in range(1, 501)])
        assert [entry.reward for entry in stored] == [1.0] * 100 + [0.0] * 400

    async def test_close_makes_requested_changes_durable(self, store: RunStore, tmp_path: Path) -> None:
        for number in range(100):
            store.set_meta(str(number), "x")
        again = await self.opened_again(store, tmp_path)
        await store.close()
        with pytest.raises(StoreError, match="closed"):
            await store.get_meta("0")
        assert await again.get_meta("99") == "x"
        await again.close()

    # ---------------------------------------------------------------- epochs and versions

    async def test_an_epoch_records_its_empty_batches(self, store: RunStore) -> None:
        assert await store.epochs() == []
        await score(store, 1)
        await store.record_batch(batch(0, 1))
        await store.record_version(Epoch(0), Version(0), b"a")
        await store.record_epoch(epoch(1, 1, 4, 0))
        assert await store.epochs() == [epoch(1, 1, 4, 0)]
        assert await store.recorded_batches() == 4
        assert [await store.batch(Step(step)) for step in (1, 2, 3)] == [[], [], []]
        assert (await store.counts()).trained == 1
        for wrong in (epoch(1, 4, 5, None), epoch(2, 3, 5, None)):
            with pytest.raises(StoreError):
                await store.record_epoch(wrong)
        await store.record_epoch(epoch(2, 4, 4, None))
        assert await store.epochs() == [epoch(1, 1, 4, 0), epoch(2, 4, 4, None)]
        assert await store.recorded_batches() == 4

    async def test_a_quarantine_stays_until_it_is_lifted(self, store: RunStore) -> None:
        assert await store.quarantines() == []
        for peer_id in ("b", "a"):
            await store.record_quarantine(RecordQuarantine(PeerId(peer_id), "it lied", b"receipt"))
        await store.record_quarantine(RecordQuarantine(PeerId("a"), "again", b"other"))
        await store.lift_quarantine(PeerId("b"))
        await store.lift_quarantine(PeerId("c"))
        assert await store.quarantines() == [RecordQuarantine(PeerId("a"), "it lied", b"receipt")]

    async def test_versions_are_announced_once_and_never_changed(self, store: RunStore) -> None:
        assert await store.newest_version() is None
        assert await store.record_version(Epoch(0), Version(0), b"a")
        assert await store.record_version(Epoch(0), Version(9), b"b")
        assert not await store.record_version(Epoch(0), Version(9), b"b")
        with pytest.raises(StoreError, match="other content"):
            await store.record_version(Epoch(0), Version(9), b"c")
        assert await store.record_version(Epoch(1), Version(4), b"d")
        assert await store.newest_version() == StoredVersion(Epoch(1), Version(4), b"d")
        assert await store.version(Version(9)) == StoredVersion(Epoch(0), Version(9), b"b")
        assert await store.version(Version(5)) is None

    async def test_the_newest_versions_are_those_of_the_newest_epoch_and_then_those_before(
        self, store: RunStore
    ) -> None:
        assert await store.newest_versions(2) == []
        for number, version in ((0, 80), (0, 90), (1, 2), (1, 4), (1, 6)):
            await store.record_version(Epoch(number), Version(version), b"a")
        assert [(one.epoch, one.version) for one in await store.newest_versions(2)] == [(1, 6), (1, 4)]
        assert [(one.epoch, one.version) for one in await store.newest_versions(4)][2:] == [(1, 2), (0, 90)]

    # ---------------------------------------------------------------- invites, figures, facts

    async def test_invite_admits_its_quota(self, store: RunStore) -> None:
        await store.create_invite(b"hash", "peer", quota=3, expires_unix_s=100.0)

        def claim(peer: str, *, role: str = "peer", token: bytes = b"hash", at: float = 50.0) -> asyncio.Future[None]:
            return store.claim_invite(token, role, PeerId(peer), now_unix_s=at)

        together = await asyncio.gather(*(claim(f"p{number}") for number in range(8)), return_exceptions=True)
        assert sum(outcome is None for outcome in together) == 3
        assert all(outcome is None or isinstance(outcome, JoinRefused) for outcome in together)
        await claim("p0")  # the same identity again uses nothing up
        for refused, words in (
            (claim("p9"), "used up"),
            (claim("p0", role="learner"), "for the role peer"),
            (claim("p0", token=b"other"), "no such invite"),
            (claim("p0", at=100.0), "expired"),
        ):
            with pytest.raises(JoinRefused, match=words):
                await refused

    async def test_invites_are_listed_and_revoked(self, store: RunStore) -> None:
        await store.create_invite(b"\x01" * 32, "peer", quota=3, expires_unix_s=100.0, note="for Ann")
        await store.claim_invite(b"\x01" * 32, "peer", PeerId("p0"), now_unix_s=50.0)
        (one,) = await store.invites(10)
        assert one.used == 1
        assert await store.invite_of(PeerId("p0")) == one.invite_id
        assert await store.invite_of(PeerId("p1")) == ""
        await store.claim_invite(b"\x01" * 32, "peer", PeerId("a0"), now_unix_s=50.0)
        assert await store.peers_of_invite(one.invite_id) == ["a0", "p0"]
        assert await store.peers_of_invite("%") == []
        assert (one.role, one.quota, one.note, one.revoked) == ("peer", 3, "for Ann", False)
        await store.create_invite(b"\x02" * 32, "origin", quota=1, expires_unix_s=100.0)
        assert {found.note for found in await store.invites(10)} == {"for Ann", ""}
        assert len(await store.invites(1)) == 1
        assert not await store.revoke_invite("%")
        assert not await store.revoke_invite("01")
        assert await store.revoke_invite(one.invite_id)
        assert not await store.revoke_invite(one.invite_id)
        for token, refused in ((b"\x01" * 32, True), (b"\x02" * 32, False)):
            if refused:
                with pytest.raises(JoinRefused, match="revoked"):
                    await store.check_invite(token, now_unix_s=50.0)
            else:
                await store.check_invite(token, now_unix_s=50.0)
        assert [found.revoked for found in await store.invites(10) if found.note] == [True]

    async def test_check_does_not_use_up_an_invite(self, store: RunStore) -> None:
        await store.create_invite(b"hash", "peer", quota=1, expires_unix_s=100.0)
        await store.check_invite(b"hash", now_unix_s=50.0)
        await store.claim_invite(b"hash", "peer", PeerId("p0"), now_unix_s=50.0)
        await store.check_invite(b"hash", now_unix_s=50.0)  # used up: identities that joined with it may still check it
        for token, at, words in ((b"other", 50.0, "no such invite"), (b"hash", 100.0, "expired")):
            with pytest.raises(JoinRefused, match=words):
                await store.check_invite(token, now_unix_s=at)

    async def test_figures_and_facts(self, store: RunStore) -> None:
        await store.record_step(Step(1), {"loss": 0.5})
        await store.record_step(Step(2), {"loss": 0.25})
        await store.record_step(Step(1), {"loss": 0.75})
        assert await store.steps() == [(1, {"loss": 0.5}), (2, {"loss": 0.25})]
        assert await store.get_meta("run_id") is None
        await store.set_meta("run_id", "a")
        await store.set_meta("run_id", "b")
        assert await store.get_meta("run_id") == "b"

    # ---------------------------------------------------------------- tokens and the audit log

    async def test_tokens_outlive_the_store_and_stay_revoked(self, store: RunStore, tmp_path: Path) -> None:
        made = await store.create_token(b"h1", "ann", "viewer", made_unix_s=1.0, expires_unix_s=None)
        with pytest.raises(StoreError):
            await store.create_token(b"h2", "ann", "admin", made_unix_s=1.0, expires_unix_s=9.0)
        assert await store.revoke_token(made.token_id, 2.0)
        assert not await store.revoke_token(made.token_id, 3.0)
        assert not await store.revoke_token(99, 3.0)
        second = await store.create_token(b"h2", "ann", "admin", made_unix_s=3.0, expires_unix_s=9.0)
        again = await self.opened_again(store, tmp_path)
        assert await again.tokens() == [replace(made, revoked_unix_s=2.0), second]
        await again.close()

    async def test_the_audit_log_is_read_backwards(self, store: RunStore) -> None:
        row = AuditRow(1.0, "ann", "operator", "peers", "a, b", "drain", "done")
        numbers = [await store.record_audit(row) for _ in range(3)]
        assert [number for number, _ in await store.audit_rows(None, 2)] == numbers[:0:-1]
        assert await store.audit_rows(numbers[1], 9) == [(numbers[0], row)]

    async def test_every_event_has_a_cause(self, store: RunStore) -> None:
        await store.record_note(Note("peer", "p1", "joined"), cause="peer p1")
        with pytest.raises(StoreError, match="contradicts"):
            await store.record_event("peer", "p1", "left", cause="")


class CompactionConformance(StoreConformance):
    """Conformance tests of stores that stay bounded."""

    @abstractmethod
    async def open_store(self, folder: Path) -> CompactingStore:
        """See StoreConformance."""

    async def _old_run(self, store: CompactingStore, steps: int = 6) -> None:
        """Record a batch of two rollouts per step, of versions two steps older, and drop a group at each step."""
        for step in range(steps):
            ids = [step * 3 + 1, step * 3 + 2, step * 3 + 3]
            await score(store, *ids, version=max(0, step - 2))
            await store.close_attempt(close(ids[2], "stale"))
            await store.close_group(CloseGroup(GroupId(ids[2])))
            await store.record_version(Epoch(0), Version(step), b"v")
            await store.record_batch(batch(step, *ids[:2]))
            await store.record_step(Step(step + 1), {"loss": 1.0})

    async def _compact(self, store: CompactingStore, horizon: int) -> int:
        groups = 0
        while (done := await store.compact(Step(horizon), groups_max=2, steps_kept=3)).groups or done.versions:
            assert done.groups <= 2
            groups += done.groups
        return groups

    async def test_sums_stay_exact(self, store: CompactingStore, tmp_path: Path) -> None:
        await self._old_run(store)
        await issue(store, 90)
        before = [await store.counts(), await store.trained_ages(), await store.high_water()]
        assert await self._compact(store, 4) == 12
        assert await self._compact(store, 4) == 0
        again = cast(CompactingStore, await self.opened_again(store, tmp_path))
        assert [await again.counts(), await again.trained_ages(), await again.high_water()] == before
        assert await again.recorded_batches() == 6
        assert [one.group_id for one in await again.open_groups()] == [90]
        assert [step for step, _ in await again.steps()] == [4, 5, 6]
        assert [one.version for one in await again.newest_versions(9)] == [5, 4]
        assert [one.rollout_id for one in await again.batch(Step(4))] == [13, 14]
        assert await again.rollout(RolloutId(1)) is None
        await again.close()

    async def test_a_score_that_comes_after_its_rollout_was_compacted_changes_nothing(
        self, store: CompactingStore
    ) -> None:
        await fill(store, 1)
        await store.close_attempt(close(1))
        await store.close_group(CloseGroup(GroupId(1)))
        await score(store, 2, 3)
        await store.record_batch(batch(0, 2))
        await store.record_batch(batch(1, 3))
        assert await self._compact(store, 1) == 2
        before = await store.counts()
        await store.record_score(RolloutId(1), Score(1.0, True))
        assert await store.counts() == before
        with pytest.raises(StoreError):
            await store.record_score(RolloutId(500), Score(1.0, True))  # no such rollout ever existed

    async def test_compacted_ids_stay_refused(self, store: CompactingStore) -> None:
        await self._old_run(store)
        await self._compact(store, 4)
        await issue(store, 90)
        for refused in (
            store.record_attempt(attempt(5, group_id=90)),
            store.store_rollouts([store_rollout(99, rollout(5, group_id=5))]),
            store.record_batch(batch(3, 13)),
            store.record_batch(batch(9, 1)),
            store.record_version(Epoch(0), Version(2), b"v"),
        ):
            with pytest.raises(StoreError, match="contradicts"):
                await refused
        with pytest.raises(StoreError, match="was compacted"):
            await store.batch(Step(3))

    async def test_nothing_open_or_newest_is_compacted(self, store: CompactingStore) -> None:
        await fill(store, 1)
        await score(store, 2)
        await store.record_version(Epoch(0), Version(0), b"v")
        await store.record_batch(batch(0, 2))
        assert await self._compact(store, 1000) == 0
        assert [one.group_id for one in await store.open_groups()] == [1]
        assert await store.mixture_position() == '{"next":2}'
        assert await store.recorded_batches() == 1
        assert (await store.newest_version()) == StoredVersion(Epoch(0), Version(0), b"v")

    async def test_horizon_never_decreases(self, store: CompactingStore) -> None:
        await self._old_run(store)
        await self._compact(store, 4)
        await self._compact(store, 1)
        with pytest.raises(StoreError, match="was compacted"):
            await store.batch(Step(3))

    async def test_the_time_of_the_newest_event_is_returned(self, store: CompactingStore) -> None:
        assert await store.newest_event_unix_s() is None
        began_unix_s = time.time()
        for _ in range(2):
            await store.record_event("kind", "subject", "detail", cause="test")
        newest_unix_s = await store.newest_event_unix_s()
        assert newest_unix_s is not None
        assert began_unix_s <= newest_unix_s <= time.time()

    async def test_old_events_are_returned_and_deleted_in_order(self, store: CompactingStore) -> None:
        for number in range(10):
            await store.record_event("kind", "subject", str(number), cause="test")
        assert await store.oldest_events(4, kept=7) == []
        entries = await store.oldest_events(4, kept=6)
        assert [(one.detail, one.cause) for one in entries] == [(str(number), "test") for number in range(4)]
        await store.delete_events(entries[-1].order)
        assert [one.detail for one in await store.oldest_events(4, kept=0)] == ["4", "5", "6", "7"]
