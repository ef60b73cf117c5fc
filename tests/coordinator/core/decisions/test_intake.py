"""Rollouts from their arrival to the ledger: the checks on their form, and what becomes of good ones, bad ones
and late ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.decisions.rollout_checks import (
    malformed_partial,
    malformed_rollout,
    sent_past_its_end,
    unfinished,
)
from coordinator.core.events.actions import (
    Action,
    AnswerUpload,
    CloseAttempt,
    Penalise,
    RecordAttempt,
    ScoreRollout,
    SendLeases,
    StoreRollout,
)
from coordinator.core.events.events import (
    BatchRequested,
    MalformedRollout,
    PartialReceived,
    PeerLeft,
    RolloutReceived,
    RolloutScored,
    RolloutStored,
    RunEnded,
)
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, UploadId, Version
from rollcast.wire.rollouts import FinishReason, LeaseGrant, PartialRollout, Segment
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import World, announced, held, joined, only, received, rollout, wants


def world_with_lease(**changes: Any) -> tuple[World, LeaseGrant]:
    """Return a world in which peer a holds a lease of both slots of the first group and requests no more."""
    world = World(**changes)
    world.start("a", "b")
    world.handle(wants("a", 2))
    return world, world.take("a")[0][0]


def answer(upload: int, lease: LeaseGrant, sample: int, reason: str = "") -> AnswerUpload:
    return AnswerUpload(UploadId(upload), lease.lease_id, sample, not reason, reason)


def handle(world: World, *args: Any) -> list[Action]:
    """Let the core handle an event; the store does not answer by itself."""
    return world.core.handle(*args, world.now)


def test_a_rollout_is_stored_then_acknowledged_then_scored() -> None:
    world, lease = world_with_lease()
    item = rollout(lease, 0)
    assert handle(world, received("a", 1, item)) == [StoreRollout(RolloutId(1), PeerId("a"), item)]
    assert handle(world, RolloutStored(RolloutId(1))) == [
        answer(1, lease, 0),
        ScoreRollout(RolloutId(1), "problem-0", pack_ids((5, 1))),
    ]
    assert handle(world, RolloutScored(RolloutId(1), 1.0)) == []
    assert world.core.status(0.0).rollouts.accepted == 1


def test_repeated_uploads_get_the_same_answer_before_and_after_the_store() -> None:
    world, lease = world_with_lease()
    item = rollout(lease, 0)
    handle(world, received("a", 1, item))
    assert handle(world, received("a", 2, item)) == []
    assert handle(world, RolloutStored(RolloutId(1)))[:2] == [answer(1, lease, 0), answer(2, lease, 0)]
    assert handle(world, received("a", 3, item)) == [answer(3, lease, 0)]
    assert world.core.status(0.0).rollouts.accepted == 1


def test_repeated_uploads_that_wait_are_bounded() -> None:
    world, lease = world_with_lease()
    for upload in range(8):
        handle(world, received("a", upload, rollout(lease, 0)))
    assert handle(world, received("a", 8, rollout(lease, 0))) == [answer(8, lease, 0, "busy")]
    assert len(only(handle(world, RolloutStored(RolloutId(1))), AnswerUpload)) == 8


def test_an_upload_is_answered_alike_after_its_batch_was_recorded() -> None:
    world = World(groups_per_step=1)
    world.start("a")
    world.handle(wants("a", 2))
    (lease, _), _ = world.take("a")
    for sample in (0, 1):
        world.handle(received("a", sample, rollout(lease, sample)))
    world.handle(BatchRequested(Step(0)))
    assert world.handle(received("a", 9, rollout(lease, 0))) == [answer(9, lease, 0)]
    assert world.handle(received("b", 10, rollout(lease, 0))) == [answer(10, lease, 0, "fenced")]
    assert world.core.status(0.0).rollouts.trained == 2


def test_no_peer_can_answer_for_another_or_with_another_token() -> None:
    world, lease = world_with_lease()
    assert world.handle(received("b", 1, rollout(lease, 0))) == [
        Penalise(PeerId("b"), "uploaded under another peer's lease", False),
        answer(1, lease, 0, "fenced"),
    ]
    for wrong in ({"fencing_token": FencingToken(99)}, {"group_id": GroupId(99)}):
        assert world.handle(received("a", 2, rollout(lease, 0, **wrong))) == [
            Penalise(PeerId("a"), "uploaded with a wrong fencing token", False),
            answer(2, lease, 0, "fenced"),
        ]
    assert world.handle(received("a", 3, rollout(lease, 0, lease_id=LeaseId(99))))[0].reason == "fenced"  # type: ignore[union-attr]
    assert world.core.status(0.0).rollouts.uploads_refused == {"fenced": 4}
    assert world.core.status(0.0).rollouts.open == 2


def test_a_late_upload_is_fenced_and_after_another_attempt_a_late_duplicate() -> None:
    world, lease = world_with_lease()
    world.handle(PeerLeft(PeerId("a"), "gone", finished=True))
    world.handle(joined("a"))
    assert world.handle(received("a", 1, rollout(lease, 0))) == [answer(1, lease, 0, "fenced")]
    world.handle(wants("b", 2))
    world.finish("b")
    assert world.handle(received("a", 2, rollout(lease, 0))) == [answer(2, lease, 0, "late_duplicate")]
    counts = world.core.status(0.0).rollouts
    assert (counts.issued, counts.accepted, counts.open, counts.dropped) == (4, 2, 2, {"peer_left": 2})


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"segments": ()}, "uploaded a rollout without segments"),
        ({"version": 3}, "claims version 3 of epoch 0, which was not published"),
        ({"epoch": 1}, "claims version 0 of epoch 1, which was not published"),
        ({"tokens": 5}, "uploaded 5 generated tokens, where 1 to 4 are allowed"),
        ({"tokens": 0}, "uploaded 0 generated tokens, where 1 to 4 are allowed"),
        ({"token": 32}, "uploaded token 32, beyond a vocabulary of 32"),
        ({"role": "tool"}, "uploaded a segment of role tool instead of assistant"),
        ({"peer": "b"}, "uploaded a segment generated by another peer"),
        ({"mask": b"\0\1"}, "uploaded a loss mask that leaves out tokens that the policy generated"),
    ],
)
def test_impossible_claims_close_the_attempt(changes: dict[str, Any], what: str) -> None:
    world, lease = world_with_lease()
    item = rollout(lease, 0, segments=changes.get("segments", (segment(**changes),)))
    assert world.handle(received("a", 1, item)) == [
        Penalise(PeerId("a"), what, False),
        CloseAttempt(lease.lease_id, 0, "malformed"),
        answer(1, lease, 0, "malformed"),
    ]


def test_routes_must_be_for_the_prompt_of_the_lease() -> None:
    length = len(world_with_lease()[1].prompt_token_ids)
    for routed in (0, length):
        world, lease = world_with_lease()
        item = rollout(lease, 0, segments=(segment(token_ids=(5, 1)),), routed_prompt_tokens=routed)
        assert only(world.handle(received("a", 1, item)), StoreRollout)
    world, lease = world_with_lease()
    item = rollout(lease, 0, segments=(segment(token_ids=(5, 1)),), routed_prompt_tokens=length + 1)
    actions = world.handle(received("a", 1, item))
    assert actions[0] == Penalise(PeerId("a"), "uploaded routes for a prompt of another length", False)
    assert actions[-1] == answer(1, lease, 0, "malformed")


def segment(**changes: Any) -> Segment:
    tokens = changes.get("tokens", 2)
    return Segment(
        changes.get("role", "assistant"),
        Epoch(changes.get("epoch", 0)),
        Version(changes.get("version", 0)),
        PeerId(changes.get("peer", "a")),
        pack_ids(changes.get("token_ids", (changes.get("token", 5),) * tokens)),
        changes.get("mask", b"\1" * tokens),
    )


ENDED = segment(token_ids=(5, 1))


def test_one_bad_segment_among_good_ones_is_enough_and_together_they_are_bounded() -> None:
    for others in ((segment(role="user"),), (segment(peer="b"),), (segment(tokens=2),)):
        world, lease = world_with_lease()
        actions = world.handle(received("a", 1, rollout(lease, 0, segments=(segment(), *others, ENDED))))
        assert actions[-1] == answer(1, lease, 0, "malformed")
    world, lease = world_with_lease()
    assert only(world.handle(received("a", 1, rollout(lease, 0, segments=(segment(), ENDED)))), StoreRollout)


def test_a_version_between_two_published_ones_cannot_be_claimed() -> None:
    world, lease = world_with_lease(publish_every_steps=2)
    world.handle(announced(2))
    assert world.handle(received("a", 1, rollout(lease, 0, version=1)))[1:] == [
        CloseAttempt(lease.lease_id, 0, "malformed"),
        answer(1, lease, 0, "malformed"),
    ]
    assert only(world.handle(received("a", 2, rollout(lease, 1, version=2))), StoreRollout) != []


def test_a_malformed_upload_closes_the_attempt_of_its_sender_only() -> None:
    world, lease = world_with_lease()

    def garbage(peer: str, token: int, sample: int = 0) -> list[Action]:
        return world.handle(
            MalformedRollout(UploadId(1), PeerId(peer), lease.lease_id, FencingToken(token), sample, "no")
        )

    refused = answer(1, lease, 0, "malformed")
    assert garbage("b", lease.fencing_token) == [refused]
    assert garbage("a", lease.fencing_token + 1) == [refused]
    assert garbage("a", lease.fencing_token) == [
        Penalise(PeerId("a"), "uploaded a malformed rollout: no", False),
        CloseAttempt(lease.lease_id, 0, "malformed"),
        refused,
    ]
    assert garbage("a", lease.fencing_token) == [refused]
    counts = world.core.status(0.0).rollouts
    assert (counts.open, counts.dropped, counts.uploads_refused) == (1, {"malformed": 1}, {"malformed": 3})


def test_a_rollout_that_is_too_old_already_is_dropped_as_stale_and_its_slot_issued_again() -> None:
    world = World(groups_per_step=1, staleness_limit=0)
    world.start("a")
    world.handle(wants("a", 2))
    world.finish("a")
    world.handle(BatchRequested(Step(0)))
    world.handle(announced(1))
    world.handle(held("a", 1))
    world.handle(wants("a", 2))
    (lease, slot), _ = world.take("a")
    world.handle(wants("a", 1))
    actions = world.handle(received("a", 9, rollout(lease, 0, version=0)))
    assert actions[:2] == [CloseAttempt(lease.lease_id, 0, "stale"), answer(9, lease, 0, "stale")]
    assert [(again.group_id, again_slot) for again, again_slot in world.take("a")] == [(lease.group_id, slot)]


def test_an_interrupted_rollout_is_reissued_to_another_peer() -> None:
    world, lease = world_with_lease()
    assert world.handle(received("a", 1, rollout(lease, 0, finish_reason="interrupted"))) == [
        CloseAttempt(lease.lease_id, 0, "returned"),
        answer(1, lease, 0, "returned"),
    ]
    assert only(world.handle(wants("b", 1)), RecordAttempt) == [
        RecordAttempt(LeaseId(2), FencingToken(2), lease.group_id, 0, lease.slots[0].seed, PeerId("b"))
    ]


def test_busy_leaves_the_attempt_open() -> None:
    world, lease = world_with_lease(scoring_queue_max=1)
    handle(world, received("a", 1, rollout(lease, 0)))
    assert handle(world, received("a", 2, rollout(lease, 1))) == [answer(2, lease, 1, "busy")]
    handle(world, RolloutStored(RolloutId(1)))
    handle(world, RolloutScored(RolloutId(1), 0.0))
    assert only(handle(world, received("a", 3, rollout(lease, 1))), StoreRollout) != []


def test_a_rollout_stored_after_the_end_is_acknowledged_but_not_scored() -> None:
    world, lease = world_with_lease()
    handle(world, received("a", 1, rollout(lease, 0)))
    handle(world, RunEnded("finished", True))
    assert handle(world, RolloutStored(RolloutId(1))) == [answer(1, lease, 0)]
    assert handle(world, received("a", 2, rollout(lease, 0))) == [answer(2, lease, 0)]
    assert handle(world, received("a", 3, rollout(lease, 1))) == [answer(3, lease, 1, "run_ended")]
    counts = world.core.status(0.0).rollouts
    assert (counts.issued, counts.accepted, counts.open, counts.dropped) == (2, 1, 0, {"run_ended": 2})


def test_a_free_place_is_used_as_soon_as_a_rollout_is_received() -> None:
    world = World()
    world.start("a")
    world.handle(wants("a", 4))
    leases = world.take("a")
    world.handle(wants("a", 2))
    assert world.take("a") == []
    world.handle(received("a", 1, rollout(leases[0][0], 0)))
    assert only(world.handle(received("a", 2, rollout(leases[1][0], 1))), SendLeases) != []


def test_a_peer_that_sent_a_stop_string_as_a_part_is_to_blame_for_what_followed() -> None:
    world, lease = world_with_lease()
    sent = PartialRollout(lease.lease_id, lease.fencing_token, 0, 0, (segment(),))
    world.handle(PartialReceived(PeerId("a"), sent))
    world.handle(PeerLeft(PeerId("a"), "gone", finished=True))
    world.handle(wants("b", 2))
    ((continued, slot),) = [(grant, slot) for grant, slot in world.take("b") if slot.prefix]
    own = segment(peer="b", tokens=1)
    item = rollout(continued, slot.sample_index, segments=(*slot.prefix, own), peer="b")
    event = RolloutReceived(UploadId(1), PeerId("b"), item, text_end=2)
    assert world.handle(event) == [
        Penalise(PeerId("a"), "sent a partial rollout that contains a stop string", False),
        CloseAttempt(continued.lease_id, slot.sample_index, "revoked"),
        answer(1, continued, slot.sample_index, "revoked"),
    ]


A = PeerId("a")


def completion(*tokens: int, peer: str = "a", version: int = 0) -> Segment:
    return Segment("assistant", Epoch(0), Version(version), PeerId(peer), pack_ids(tokens), b"\1" * len(tokens))


def leased_world() -> World:
    made = World()
    made.start("a", "b")
    made.handle(wants("a", 1))
    return made


def test_a_rollout_continues_exactly_its_prefix() -> None:
    here = leased_world()
    (lease, _), *_ = here.take("a")
    prefix = (completion(5, 6, peer="b"),)
    state = here.core._state
    whole = rollout(lease, 0, segments=(*prefix, completion(7, 1)))
    assert malformed_rollout(state, A, whole, prefix) == ""
    with_evidence = replace(prefix[0], reported_logprobs=(float("nan"), 0.0))
    assert malformed_rollout(state, A, replace(whole, segments=(with_evidence, completion(7, 1))), prefix) == ""
    other = "uploaded a rollout that does not begin with the prefix of its lease"
    for changed in (completion(5, 7, peer="b"), completion(5, 6), completion(5, peer="b")):
        assert malformed_rollout(state, A, replace(whole, segments=(changed, completion(7, 1))), prefix) == other
    foreign = replace(whole, segments=(*prefix, completion(7, peer="b")))
    assert malformed_rollout(state, A, foreign, prefix) == "uploaded a segment generated by another peer"
    long = replace(whole, segments=(*prefix, completion(7, 7, 7)))
    assert malformed_rollout(state, A, long, prefix) == "uploaded 5 generated tokens, where 1 to 4 are allowed"


@pytest.mark.parametrize(
    ("position", "parts", "what"),
    [
        (0, (completion(5, 6),), ""),
        (2, (completion(5),), ""),
        (2, (completion(5, 6),), "sent a partial rollout of 4 tokens, which is a whole one"),
        (0, (completion(5, 1),), "sent a partial rollout that contains a stop token"),
        (0, (completion(5, peer="b"),), "uploaded a segment generated by another peer"),
        (0, (completion(99),), "uploaded token 99, beyond a vocabulary of 32"),
    ],
)
def test_a_part_leaves_something_to_generate(position: int, parts: tuple[Segment, ...], what: str) -> None:
    state = leased_world().core._state
    assert malformed_partial(state, A, PartialRollout(LeaseId(1), FencingToken(1), 0, position, parts)) == what


def test_a_rollout_without_tokens_is_unfinished_too() -> None:
    assert unfinished(leased_world().core._state, ()) == ""


def test_nothing_comes_after_an_end() -> None:
    here = leased_world()
    (lease, _), *_ = here.take("a")
    state = here.core._state
    after_token = rollout(lease, 0, segments=(completion(5, 1, 6),))
    assert malformed_rollout(state, A, after_token, ()) == "uploaded a rollout with tokens after its stop token"
    whole = rollout(lease, 0, segments=(completion(5, 6, 1),))
    for text_end, what in ((None, ""), (3, ""), (2, "uploaded a rollout with tokens after a stop string")):
        assert malformed_rollout(state, A, whole, (), text_end) == what


STOPPED = "uploaded a rollout that claims to have stopped, without a stop token or stop string at its end"
SHORT = "uploaded 2 generated tokens as the longest length, which is 4"


@pytest.mark.parametrize(
    ("reason", "tokens", "text_end", "what"),
    [
        ("stop", (5, 1), None, ""),
        ("stop", (5, 6), 2, ""),
        ("stop", (5, 6), None, STOPPED),
        ("stop", (5, 6, 7, 8), None, STOPPED),
        ("length", (5, 6, 7, 8), None, ""),
        ("length", (5, 6, 7, 1), None, ""),
        ("length", (5, 6), None, SHORT),
        ("length", (5, 1), None, SHORT),
    ],
)
def test_a_rollout_ends_as_its_tokens_and_its_lease_say(
    reason: FinishReason, tokens: tuple[int, ...], text_end: int | None, what: str
) -> None:
    here = leased_world()
    (lease, _), *_ = here.take("a")
    item = rollout(lease, 0, segments=(completion(*tokens),), finish_reason=reason)
    assert malformed_rollout(here.core._state, A, item, (), text_end) == what


@pytest.mark.parametrize(("text_end", "culprit"), [(None, None), (1, "b"), (2, "b"), (3, "c"), (4, None)])
def test_a_peer_that_sent_an_end_as_a_part_is_named(text_end: int | None, culprit: str | None) -> None:
    prefix = (completion(5, 6, peer="b"), completion(7, peer="c"))
    assert sent_past_its_end(prefix, text_end) == culprit
