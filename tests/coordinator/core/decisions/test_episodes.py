"""Episodes: turns are stored before they are acknowledged, and the environment's answers go where they belong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.core import CoordinatorCore, Restored
from coordinator.core.decisions.rollouts import drop_stale, without_advantage
from coordinator.core.decisions.settings import EpisodeRules
from coordinator.core.events.actions import (
    Action,
    AnswerUpload,
    CloseAttempt,
    CloseGroup,
    CommitTogether,
    DropTurns,
    Note,
    Penalise,
    SendLeases,
    StoreEpisode,
    StoreTurn,
    SupplyPrompts,
)
from coordinator.core.events.episode_events import (
    CloseEpisode,
    EpisodeFailed,
    EpisodeOpened,
    EpisodeStepped,
    OpenEpisode,
    StepEpisode,
)
from coordinator.core.events.events import Event, PromptsSupplied, RolloutStored, Started, Tick, TurnStored
from coordinator.core.events.restored import RestoredAttempt, RestoredGroup, RestoredTurn
from rollcast.wire.ids import EpisodeId, GroupId, LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import LeaseGrant, Rollout, Sampling, Segment, observation, prefix_digest
from rollcast.wire.token_ids import pack_ids, unpack_ids
from tests.coordinator.core_world import (
    World,
    announced,
    held,
    joined,
    only,
    prompt,
    received,
    rollout,
    settings,
    wants,
)

SAID = (6, 7)
LONGEST = Sampling(temperature=1.0, max_new_tokens=12, stop_token_ids=(1,))


class EpisodeWorld(World):
    """A world of one slot per group whose problems have an environment. Environments answer only when told to."""

    def __init__(self, *, opening: tuple[int, ...] = (), agents: int = 1, **changes: Any) -> None:
        values = {"samples_per_group": agents, "sampling": LONGEST, "groups_per_step": 1}
        super().__init__(**(values | changes))
        self.opening, self.agents = opening, agents

    def handle(self, event: Event) -> list[Action]:
        actions = self.core.handle(event, self.now)
        done = list(actions)
        for action in actions:
            match action:
                case SupplyPrompts(count):
                    asked = tuple(
                        replace(prompt(number), environment="guess", agents=self.agents) for number in range(count)
                    )
                    done += self.handle(PromptsSupplied(asked))
                case SendLeases(peer_id, leases):
                    self.grants.setdefault(peer_id, []).extend(leases)
                case OpenEpisode(episode):
                    done += self.handle(EpisodeOpened(episode, self.opening))
                case StoreTurn(rollout=stored):
                    done += self.handle(TurnStored(stored.lease_id, stored.sample_index))
                case StoreEpisode(rollout_id):
                    done += self.handle(RolloutStored(rollout_id))
                case CommitTogether():
                    done += [one for stored in action.episodes for one in self.handle(RolloutStored(stored.rollout_id))]
                case _:
                    pass
        return done

    def lease(self, peer: str = "a") -> LeaseGrant:
        """Return the only lease that the peer was given since the last call."""
        ((lease, _),) = self.take(peer)
        return lease

    def turn(self, lease: LeaseGrant, peer: str = "a", **changes: Any) -> list[Action]:
        self.uploads += 1
        return self.handle(received(peer, self.uploads, turn_of(lease, peer, **changes)))

    def turn_at(self, lease: LeaseGrant, sample: int, **changes: Any) -> list[Action]:
        """Upload a turn of a slot that is not the group's first."""
        self.uploads += 1
        made = replace(turn_of(lease, **changes), sample_index=sample)
        return self.handle(received("a", self.uploads, made))

    def step(self, asked: list[Action], **changes: Any) -> list[Action]:
        """Answer the environment's question among these actions."""
        (question,) = only(asked, StepEpisode)
        values = {"observation_tokens": SAID, "observation_role": "tool", "reward": 0.25, "done": False}
        return self.handle(EpisodeStepped(question.episode, question.turn, **(values | changes)))


def turn_of(lease: LeaseGrant, peer: str = "a", **changes: Any) -> Rollout:
    prefix = lease.slots[0].prefix
    own = rollout(lease, 0, peer=peer, **changes)
    has_answer = any(not one.is_generated for one in prefix)
    return replace(own, prefix_digest=prefix_digest(prefix)) if has_answer else own


def world(**changes: Any) -> tuple[EpisodeWorld, LeaseGrant]:
    """Return a world in which peer a holds the lease of the first turn."""
    found = EpisodeWorld(**changes)
    found.start("a", "b")
    found.handle(wants("a", 1))
    return found, found.lease()


def test_an_episode_is_its_turns_and_what_the_environment_says_and_is_trained_whole() -> None:
    here, first = world(opening=(9,))
    assert [one.role for one in first.slots[0].prefix] == ["user"]
    asked = here.turn(first)
    store, question = only(asked, StoreTurn)[0], only(asked, StepEpisode)[0]
    assert (store.turn, store.observation, question.tokens) == (0, observation("user", (9,)), (5, 1))
    assert asked.index(store) < asked.index(only(asked, AnswerUpload)[0])  # durable first (I1)
    closed = only(here.step(asked), CloseAttempt)
    assert [one.reason for one in closed] == ["next_turn"]
    here.handle(wants("a", 1))
    second = here.lease()
    assert [one.token_ids for one in second.slots[0].prefix] == [(9,), (5, 1), SAID]
    assert second.slots[0].seed == first.slots[0].seed
    asked = here.turn(second)
    ended = here.step(asked, done=True, reward=1.0)
    (stored,) = only(ended, StoreEpisode)
    assert stored.reward == 1.25
    assert [(one.role, one.loss_mask) for one in stored.rollout.segments] == [
        *(("user", b"\0"), ("assistant", b"\1\1"), ("tool", b"\0\0"), ("assistant", b"\1\1"))
    ]
    body = pb.Rollout.FromString(stored.rollout.body)
    assert [unpack_ids(one.packed_ids) for one in body.segments] == [(9,), (5, 1), SAID, (5, 1)]
    assert only(ended, CloseEpisode)[0].reason == "done"
    counts = here.core.state.accounts
    assert (counts.issued, counts.turns, counts.open, counts.accepted) == (2, 1, 1, 1)
    assert here.core.state.book.ready_count == 1


@pytest.mark.parametrize("wrong", ["another prefix", "it repeats the prefix", "it speaks for the tool", "loss mask"])
def test_a_peer_sends_its_own_tokens_only_after_exactly_the_prefix_of_its_lease(wrong: str) -> None:
    here, first = world()
    here.step(here.turn(first))
    here.handle(wants("a", 1))
    lease = here.lease()
    good, said = turn_of(lease), lease.slots[0].prefix
    own = good.segments[0]
    uploads = {
        "another prefix": replace(good, prefix_digest=prefix_digest((*said[:-1], observation("tool", (8, 8))))),
        "it repeats the prefix": replace(good, prefix_digest=b"", segments=(*said, own)),
        "it speaks for the tool": replace(good, segments=(observation("tool", (8,)), own)),
        "loss mask": replace(good, segments=(replace(own, loss_mask=b"\0\1"),)),
    }
    actions = here.handle(received("a", 9, uploads[wrong]))
    assert [one.peer_id for one in only(actions, Penalise)] == ["a"]
    assert [one.reason for one in only(actions, AnswerUpload)] == ["malformed"]
    assert not only(actions, StoreTurn)


def test_a_single_turn_has_no_digest_of_a_prefix() -> None:
    here = World()
    here.start("a")
    here.handle(wants("a", 1))
    lease = here.take("a")[0][0]
    actions = here.handle(received("a", 1, replace(rollout(lease, 0), prefix_digest=bytes(16))))
    assert only(actions, AnswerUpload)[0].reason == "malformed"


@pytest.mark.parametrize(
    ("changes", "said", "end"),
    [
        ({"episodes": EpisodeRules(turns_max=1)}, SAID, "turns"),
        ({"sampling": replace(LONGEST, max_new_tokens=4)}, SAID, "tokens"),  # no token is left after the answer
        ({"episodes": EpisodeRules(seconds_max=0.0)}, SAID, "time"),
    ],
)
def test_limits_end_an_episode_with_the_reward_so_far(changes: dict[str, Any], said: tuple[int, ...], end: str) -> None:
    here, first = world(**changes)
    ended = here.step(here.turn(first), observation_tokens=said)
    assert only(ended, CloseEpisode)[0].reason == end
    (stored,) = only(ended, StoreEpisode)
    assert (stored.rollout.finish_reason, stored.reward) == ("length", 0.25)
    assert stored.rollout.completion_token_ids == (5, 1)  # nothing that comes after the last assistant token


def test_the_next_turn_waits_a_little_for_the_peer_that_may_have_the_cache() -> None:
    here, first = world(episodes=EpisodeRules(sticky_s=2.0))
    here.handle(wants("b", 1))
    here.take("b")  # another group
    here.handle(wants("b", 1))
    here.step(here.turn(first))
    assert not [one for one in here.grants.get("b", []) if one.group_id == first.group_id]
    here.now = 2.5
    here.handle(Tick())
    assert [one.group_id for one in here.grants["b"]] == [first.group_id]


def test_an_environment_that_fails_is_opened_again_and_sent_the_recorded_turns() -> None:
    here, first = world(episodes=EpisodeRules(failures_max=1))
    here.step(here.turn(first))
    here.handle(wants("a", 1))
    asked = here.turn(here.lease())
    episode = only(asked, StepEpisode)[0].episode
    replayed = here.handle(EpisodeFailed(episode, "it died", True))
    opened = only(replayed, OpenEpisode)
    assert len(opened) == 1
    assert [(one.turn, one.tokens) for one in only(replayed, StepEpisode)] == [(0, (5, 1))]
    again = here.step(replayed)
    assert only(again, StepEpisode)[0].turn == 1
    ended = here.step(again, done=True)
    assert only(ended, StoreEpisode)[0].reward == 0.5
    assert here.step(asked, done=True) == []  # what the first environment may still say is out of date


def test_an_environment_that_fails_at_the_same_turn_each_time_costs_its_group_though_it_opens_again() -> None:
    here, first = world(episodes=EpisodeRules(failures_max=2))
    here.step(here.turn(first))
    here.handle(wants("a", 1))
    actions = here.turn(here.lease())
    for _ in range(2):
        replayed = here.handle(EpisodeFailed(only(actions, StepEpisode)[0].episode, "it died", True))
        actions = here.step(replayed)  # the turn before is answered again, which is no progress
        assert only(actions, StepEpisode)[0].turn == 1
    dropped = here.handle(EpisodeFailed(only(actions, StepEpisode)[0].episode, "it died", True))
    assert only(dropped, CloseGroup)


def test_failures_are_counted_on_if_the_episode_begins_anew() -> None:
    here, first = world(episodes=EpisodeRules(failures_max=1))
    here.step(here.turn(first))
    here.handle(wants("a", 1))
    asked = here.turn(here.lease())
    replayed = here.handle(EpisodeFailed(only(asked, StepEpisode)[0].episode, "it died", True))
    here.step(replayed, observation_tokens=(8, 8))  # otherwise than before
    here.handle(wants("a", 1))
    here.step(here.turn(here.lease()))
    here.handle(wants("a", 1))
    asked = here.turn(here.lease())
    assert only(here.handle(EpisodeFailed(only(asked, StepEpisode)[0].episode, "it died", True)), CloseGroup)


def test_failures_do_not_count_any_more_once_the_turn_was_answered() -> None:
    here, first = world(episodes=EpisodeRules(failures_max=1))
    asked = here.turn(first)
    for _ in range(2):
        replayed = here.handle(EpisodeFailed(only(asked, StepEpisode)[0].episode, "it died", True))
        answered = here.step(replayed)
        for question in only(answered, StepEpisode):  # the newest turn, after a recorded one
            here.handle(EpisodeStepped(question.episode, question.turn, SAID, "tool", 0.25, False))
        here.handle(wants("a", 1))
        asked = here.turn(here.lease())
    assert here.core.state.episodes.failures == 2


def test_an_environment_that_fails_for_good_costs_its_group_and_is_no_reward_of_0() -> None:
    here, first = world()
    asked = here.turn(first)
    dropped = here.handle(EpisodeFailed(only(asked, StepEpisode)[0].episode, "a bug", False))
    assert [one.reason for one in only(dropped, CloseAttempt)] == ["environment_failed"]
    assert only(dropped, CloseGroup)
    assert not only(dropped, StoreEpisode)


@pytest.mark.parametrize("wrong", [{"observation_tokens": (99,)}, {"reward": float("nan")}])
def test_what_an_environment_says_is_checked_too(wrong: dict[str, Any]) -> None:
    here, first = world()
    assert only(here.step(here.turn(first), **wrong), CloseGroup)


def test_an_environment_that_does_not_answer_has_failed() -> None:
    here, first = world(episodes=EpisodeRules(answer_s=5.0))
    here.turn(first)
    here.now = 5.5
    assert len(only(here.handle(Tick()), OpenEpisode)) == 1
    assert here.core.state.episodes.failures == 1


def test_an_environment_that_answers_otherwise_than_before_makes_the_episode_begin_anew() -> None:
    here, first = world()
    here.step(here.turn(first))
    here.handle(wants("a", 1))
    asked = here.turn(here.lease())
    replayed = here.handle(EpisodeFailed(only(asked, StepEpisode)[0].episode, "it died", True))
    anew = here.step(replayed, observation_tokens=(8, 8))
    assert only(anew, DropTurns)
    assert here.core.state.episodes.restarted["changed"] == 1
    here.handle(wants("a", 1))
    assert here.lease().slots[0].prefix == ()


def test_an_episode_whose_oldest_turn_is_too_old_begins_anew_before_another_turn_is_wasted_on_it() -> None:
    here, first = world(staleness_limit=1, groups_per_step=1)
    here.step(here.turn(first))
    here.handle(wants("a", 1))
    state = here.core.state
    state.batches.skip_to(2)  # type: ignore[arg-type]  # two batches went by
    dropped = drop_stale(state)
    assert [one.reason for one in only(dropped, CloseAttempt)] == ["stale"]
    assert only(dropped, DropTurns)
    assert only(dropped, OpenEpisode)
    assert state.episodes.restarted["stale"] == 1


def restored(pending: bool) -> Restored:
    """Return a group with one stored turn; ``pending``: its environment had not answered at the crash."""
    generated = Segment("assistant", first_epoch(), Version(0), PeerId("a"), pack_ids((5, 1)), b"\1\1")
    turn = RestoredTurn(LeaseId(1), PeerId("a"), None, (generated,), b"")
    live = RestoredAttempt(LeaseId(1 if pending else 2), LeaseId(1 if pending else 2), 0, PeerId("a"))  # type: ignore[arg-type]
    group = RestoredGroup(GroupId(1), replace(prompt(0), environment="guess"), (live,), (), {0: (turn,)})
    return Restored(
        incarnation=1,
        versions={Version(0): 16},
        last_group=1,
        issued=1 if pending else 2,
        turns=0 if pending else 1,
        groups=(group,),
    )


def test_a_second_attempt_at_a_turn_that_was_stored_before_a_crash_came_too_late() -> None:
    state = restored(True)
    second = RestoredAttempt(LeaseId(2), LeaseId(2), 0, PeerId("b"))  # type: ignore[arg-type]
    group = replace(state.groups[0], live=(*state.groups[0].live, second))
    here = EpisodeWorld()
    given = settings(samples_per_group=1, sampling=LONGEST, groups_per_step=1)
    here.core = CoordinatorCore(given, replace(state, groups=(group,), issued=2))
    started = here.handle(Started())
    assert [(one.lease_id, one.reason) for one in only(started, CloseAttempt)] == [(2, "late_duplicate")]
    here.core.validate()
    assert only(here.step(started, done=True), StoreEpisode)
    here.core.validate()


def first_epoch() -> Any:
    return announced(0).epoch


def test_a_restarted_coordinator_resumes_an_episode_at_the_turn_that_waits_for_its_answer() -> None:
    here = EpisodeWorld()
    here.core = CoordinatorCore(settings(samples_per_group=1, sampling=LONGEST, groups_per_step=1), restored(True))
    asked = here.handle(Started())
    assert [(one.turn, one.tokens) for one in only(asked, StepEpisode)] == [(0, (5, 1))]
    repeated = replace(rollout_of_lease(1), prefix_digest=b"")
    assert only(here.handle(received("a", 1, repeated)), AnswerUpload)[0].accepted  # its acknowledgement was lost
    assert only(here.step(asked, done=True), StoreEpisode)


def test_a_restarted_coordinator_takes_a_turn_that_was_leased_before_once_the_environment_is_back() -> None:
    here = EpisodeWorld()
    here.core = CoordinatorCore(settings(samples_per_group=1, sampling=LONGEST, groups_per_step=1), restored(False))
    asked = here.handle(Started())
    here.handle(joined("a"))
    here.handle(held("a", 0))
    before = restored(False).groups[0].turns[0][0].generated
    prefix = (*before, observation("tool", SAID))
    upload = replace(rollout_of_lease(2), prefix_digest=prefix_digest(prefix))
    assert only(here.handle(received("a", 1, upload)), AnswerUpload)[0].reason == "busy"
    here.step(asked)
    taken = here.handle(received("a", 2, upload))
    assert only(taken, AnswerUpload)[0].accepted
    assert only(taken, StoreTurn)[0].turn == 1


def rollout_of_lease(lease_id: int) -> Rollout:
    lease = LeaseGrant(
        *(LeaseId(lease_id), LeaseId(lease_id), GroupId(1), (10, 0), (), LONGEST, 30.0, first_epoch(), Version(0))  # type: ignore[arg-type]
    )
    return rollout(lease, 0)


# ---------------------------------------------------------------- several agents


def two_agents(**changes: Any) -> tuple[EpisodeWorld, list[Action]]:
    """Return a world in which the first of two agents has had its turn, and the environment's question about it."""
    here, first = world(**({"agents": 2, "opening": (9,)} | changes))
    assert [slot.sample_index for slot in first.slots] == [0], "only the agent that acts is leased"
    return here, here.turn(first)


def other_acts(here: EpisodeWorld, asked: list[Action], speaker: int = 1) -> LeaseGrant:
    """Let the environment name the agent that acts next, and return its lease."""
    here.step(asked, speaker=speaker, rewards=(0.5, 0.0))
    here.handle(wants("a", 1))
    return here.lease()


def test_each_agent_of_a_game_has_a_slot_with_what_it_said_and_was_shown_and_all_end_at_once() -> None:
    here, asked = two_agents()
    second = other_acts(here, asked)
    assert [(one.sample_index, one.prefix) for one in second.slots] == [(1, (observation("tool", SAID),))]
    ended = here.step(here.turn_at(second, 1), done=True, rewards=(0.25, 1.0))
    (together,) = [one for one in ended if isinstance(one, CommitTogether)]
    stored = together.episodes
    assert [(one.rollout.sample_index, one.reward) for one in stored] == [(0, 0.75), (1, 1.0)]
    assert [[part.role for part in one.rollout.segments] for one in stored] == [
        *(["user", "assistant"], ["tool", "assistant"])
    ]
    assert here.core.state.book.ready_count == 1
    counts = here.core.state.accounts
    assert (counts.issued, counts.turns, counts.open) == (2, 0, 2), "no turn was followed by another of its agent"


def test_an_agents_turn_counts_as_one_only_once_it_acts_again() -> None:
    here, asked = two_agents()
    answered = here.step(here.turn_at(other_acts(here, asked), 1), speaker=0, rewards=(0.0, 0.0))
    assert [(one.sample_index, one.reason) for one in only(answered, CloseAttempt)] == [(0, "next_turn")]
    here.handle(wants("a", 1))
    (slot,) = here.lease().slots
    assert [one.token_ids for one in slot.prefix] == [(9,), (5, 1), SAID]


def test_a_game_that_begins_anew_gives_up_the_turns_of_all_agents_in_one_transaction() -> None:
    here, asked = two_agents()
    asked = here.turn_at(other_acts(here, asked), 1)
    replayed = here.handle(EpisodeFailed(only(asked, StepEpisode)[0].episode, "it died", True))
    again = here.step(replayed, speaker=1, rewards=(0.5, 0.0))
    assert [(one.turn, one.tokens) for one in only(again, StepEpisode)] == [(1, (5, 1))]
    replayed = here.handle(EpisodeFailed(only(again, StepEpisode)[0].episode, "it died", True))
    anew = here.step(replayed, speaker=0, rewards=(0.5, 0.0))  # it named the other agent before
    (together,) = [one for one in anew if isinstance(one, CommitTogether)]
    closed, dropped = only([together], CloseAttempt), only([together], DropTurns)
    assert [(one.sample_index, one.reason) for one in closed] == [(0, "revoked"), (1, "revoked")]
    assert [one.sample_index for one in dropped] == [0, 1]


@pytest.mark.parametrize("wrong", [{"speaker": 2, "rewards": (0.0, 0.0)}, {"speaker": 1, "rewards": (0.0,)}])
def test_an_agent_that_does_not_exist_or_has_no_reward_costs_the_group(wrong: dict[str, Any]) -> None:
    here, asked = two_agents()
    assert only(here.step(asked, **wrong), CloseGroup)


def test_a_game_that_ends_before_an_agent_has_acted_has_nothing_to_train_it_on() -> None:
    here, asked = two_agents()
    dropped = here.step(asked, done=True, rewards=(1.0, 1.0))
    assert "before its agent 1 had acted" in only(dropped, Note)[0].detail
    (together,) = [one for one in dropped if isinstance(one, CommitTogether)]
    assert [type(one) for one in together.changes] == [CloseAttempt, CloseGroup]


def test_limits_end_a_game_only_after_every_agent_has_acted() -> None:
    here, asked = two_agents(sampling=replace(LONGEST, max_new_tokens=4), opening=(9, 9))
    assert not only(asked, StepEpisode)[0].truncated, "the first agent is at its longest length"
    asked = here.turn_at(other_acts(here, asked), 1)
    assert only(asked, StepEpisode)[0].truncated
    assert len(only(here.step(asked, speaker=0, rewards=(0.0, 0.0)), StoreEpisode)) == 2


def test_agents_are_compared_with_their_own_kind() -> None:
    here, asked = two_agents()
    here.step(here.turn_at(other_acts(here, asked), 1), done=True, rewards=(0.25, 1.0))
    (group,) = here.core.state.book.ready_groups()
    assert without_advantage(group), "their rewards differ from each other's only"


def test_a_restarted_coordinator_sends_the_turns_of_all_agents_in_the_order_that_the_environment_names() -> None:
    mine = Segment("assistant", first_epoch(), Version(0), PeerId("a"), pack_ids((5, 1)), b"\1\1")
    recorded = {
        0: (RestoredTurn(LeaseId(1), PeerId("a"), observation("user", (9,)), (mine,), b""),),
        1: (RestoredTurn(LeaseId(2), PeerId("a"), observation("tool", SAID), (mine,), b""),),
    }
    live = tuple(RestoredAttempt(LeaseId(one), LeaseId(one), one - 1, PeerId("a")) for one in (1, 2))  # type: ignore[arg-type]
    group = RestoredGroup(GroupId(1), replace(prompt(0), environment="guess", agents=2), live, (), recorded)
    here = EpisodeWorld(opening=(9,), agents=2)
    given = settings(samples_per_group=2, sampling=LONGEST, groups_per_step=1)
    before = Restored(incarnation=1, versions={Version(0): 16}, last_group=1, issued=2, groups=(group,))
    here.core = CoordinatorCore(given, before)
    asked = here.handle(Started())
    assert only(asked, StepEpisode)[0].turn == 0
    asked = here.step(asked, speaker=1, rewards=(0.0, 0.0))
    assert only(asked, StepEpisode)[0].turn == 1
    assert len(only(here.step(asked, done=True, rewards=(0.0, 1.0)), StoreEpisode)) == 2
    here.core.validate()


def test_answers_of_an_unknown_episode_are_ignored() -> None:
    here, _ = world()
    for late in (EpisodeOpened(EpisodeId(99)), EpisodeStepped(EpisodeId(99), 0, (), "tool", 0.0, True)):
        assert here.handle(late) == []
    assert here.handle(EpisodeFailed(EpisodeId(99), "gone", True)) == []
