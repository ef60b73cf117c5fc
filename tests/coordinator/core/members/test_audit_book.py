"""Test which identities the findings convict, and how often an honest one would be."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from coordinator.core.events.actions import CloseAttempt, Penalise, RevokeLeases
from coordinator.core.events.audit_events import AuditRestored, RolloutAudit
from coordinator.core.events.events import PartialReceived, PeerLeft, RolloutReceived, RolloutStored, StepFinished
from coordinator.core.events.operator_events import PeerEnabled
from coordinator.core.members.audit_book import ACCUSED_P, BEYOND_P, WINDOW_TOKENS, AuditBook, AuditRecord, Verdicts
from rollcast.wire.ids import Epoch, PeerId, RolloutId, Step, UploadId, Version
from rollcast.wire.rollouts import LeaseGrant, PartialRollout, Segment, Slot
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import World, announced, held, joined, only, rollout, wants


def no_invite(_peer_id: PeerId) -> str:
    return ""


def one_invite(_peer_id: PeerId) -> str:
    return "shared"


def found(peer: str = "a", tokens: int = 20, beyond: int = 0, far: int = 0, rollout_id: int = 1) -> RolloutAudit:
    worst = 0.5 if far else 0.01 * bool(beyond)
    return RolloutAudit(RolloutId(rollout_id), PeerId(peer), tokens, beyond, far, worst, 0.005, 3)


def rollouts_until_convicted(share: float, *, far_share: float, seed: int, tokens: int = 20) -> int:
    record, chance = AuditRecord(), random.Random(seed)
    for number in range(1, 10_000):
        beyond = sum(chance.random() < share for _ in range(tokens))
        far = sum(chance.random() < far_share for _ in range(beyond))
        record.add(found(tokens=tokens, beyond=beyond, far=far))
        if record.convicted:
            return number
    raise AssertionError("never convicted")


def test_one_token_far_beyond_the_bound_convicts_and_one_just_beyond_it_does_not() -> None:
    book = AuditBook()
    assert book.add(
        Step(1), [found("near", beyond=1), found("far", beyond=1, far=1), found("honest")], no_invite
    ).convicted == ("far",)
    states = {name: record.state for name in ("near", "far", "honest") if (record := book.record(PeerId(name)))}
    assert states == {"near": "watched", "far": "convicted", "honest": "probation"}
    assert "0.5 nats off, where 0.005 is allowed" in book.convicted()[PeerId("far")]


@pytest.mark.parametrize(("share", "rollouts_most"), [(0.1, 6), (0.03, 16), (0.004, 250)])
def test_a_cheat_is_convicted_by_tokens_just_beyond_the_bound(share: float, rollouts_most: int) -> None:
    taken = sorted(rollouts_until_convicted(share, far_share=0.0, seed=seed) for seed in range(50))
    assert taken[-1] <= rollouts_most


def test_long_honest_work_does_not_excuse_later_cheating() -> None:
    record = AuditRecord()
    for _ in range(50 * WINDOW_TOKENS // 1000):
        record.add(found(tokens=1000))
    assert record.state == "good"
    for _ in range(4):
        record.add(found(tokens=20, beyond=2))
    assert record.convicted


@pytest.mark.parametrize("tokens", [1, 100, WINDOW_TOKENS])
def test_an_honest_identity_is_accused_as_seldom_as_promised(tokens: int) -> None:
    """The evidence is a likelihood ratio: its mean under the honest probability is at most 1, as Ville's needs."""
    mean = sum(
        math.comb(tokens, beyond)
        * BEYOND_P**beyond
        * (1.0 - BEYOND_P) ** (tokens - beyond)
        * math.exp(AuditRecord(window_tokens=tokens, window_beyond=beyond).evidence)
        for beyond in range(min(tokens, 60) + 1)
    )
    assert mean <= 1.0 + 1e-9
    windows = (math.exp(-AuditRecord(window=window).evidence_needed) for window in range(1, 10_000))
    assert sum(windows) <= ACCUSED_P


def test_a_step_counts_once_and_the_book_survives_a_restart() -> None:
    book = AuditBook()
    book.add(Step(3), [found("a", far=1, beyond=1), found("b", beyond=1)], one_invite)
    again = AuditBook()
    again.restore(AuditRestored(book.to_json()))
    assert again.record(PeerId("b")) == book.record(PeerId("b"))
    assert again.convicted() == book.convicted()
    assert again.add(Step(3), [found("b", far=1, beyond=1)], one_invite) == Verdicts()
    assert again.add(Step(4), [found("b", far=1, beyond=1)], one_invite) == Verdicts((PeerId("b"),), ("shared",))
    assert again.suspended("shared") == "2 of its identities were convicted by audits"


def test_a_convicted_identity_loses_its_leases_and_its_untrained_rollouts() -> None:
    world = World(steps=10)
    world.start("a", "b")
    world.handle(wants("a", 2))
    (lease, _), (_, other) = world.take("a")
    item = rollout(lease, 0)
    world.core.handle(RolloutReceived(UploadId(1), PeerId("a"), item), world.now)
    world.core.handle(RolloutStored(RolloutId(1)), world.now)
    done = world.handle(StepFinished(Step(1), {}, (found("a", far=1, beyond=1),)))
    assert [one.quarantined for one in only(done, Penalise)] == [True]
    assert {(one.sample_index, one.reason) for one in only(done, CloseAttempt)} == {
        (0, "audit_failed"),
        (other.sample_index, "revoked"),
    }
    world.handle(wants("a", 2))
    assert world.take("a") == []
    world.handle(PeerEnabled(PeerId("a"), ""))
    world.handle(wants("a", 2))
    assert world.take("a"), "the operator may undo it"
    assert world.core._state.audit.record(PeerId("a")) is None


def part(peer: str, *tokens: int) -> Segment:
    return Segment("assistant", Epoch(0), Version(0), PeerId(peer), pack_ids(tokens), b"\1" * len(tokens))


def continued_by_b() -> tuple[World, LeaseGrant, Slot]:
    """Let a peer begin a rollout and leave, and return the lease with which another one continues it."""
    world = World(steps=10)
    world.start("a", "b")
    world.handle(wants("a", 1))
    ((lease, slot),) = world.take("a")
    begun = PartialRollout(lease.lease_id, lease.fencing_token, slot.sample_index, 0, (part("a", 5, 5),))
    world.handle(PartialReceived(PeerId("a"), begun))
    world.handle(PeerLeft(PeerId("a"), "gone", finished=True))
    world.handle(wants("b", 1))
    ((continued, slot),) = world.take("b")
    assert slot.prefix
    return world, continued, slot


CONVICTED = StepFinished(Step(1), {}, (found("a", far=1, beyond=1),))


def test_what_another_peer_continued_from_a_convicted_ones_tokens_is_dropped() -> None:
    world, lease, slot = continued_by_b()
    item = rollout(lease, slot.sample_index, segments=(*slot.prefix, part("b", 1)), peer="b")
    world.core.handle(RolloutReceived(UploadId(1), PeerId("b"), item), world.now)
    world.core.handle(RolloutStored(RolloutId(1)), world.now)
    dropped = only(world.handle(CONVICTED), CloseAttempt)
    assert dropped == [CloseAttempt(lease.lease_id, slot.sample_index, "audit_failed")]
    assert not world.core._state.members.reputation(PeerId("b")).quarantined


def test_what_another_peer_is_continuing_from_a_convicted_ones_tokens_is_revoked() -> None:
    world, lease, slot = continued_by_b()
    done = world.handle(CONVICTED)
    assert only(done, CloseAttempt) == [CloseAttempt(lease.lease_id, slot.sample_index, "audit_failed")]
    assert [one.peer_id for one in only(done, RevokeLeases)] == ["b"]


def test_a_restarted_coordinator_keeps_a_convicted_identity_out() -> None:
    book = AuditBook()
    book.add(Step(3), [found("a", far=1, beyond=1)], no_invite)
    world = World()
    world.handle(AuditRestored(book.to_json()))
    world.start("a", "b")
    world.handle(wants("a", 2))
    world.handle(wants("b", 2))
    assert world.take("a") == []
    assert world.take("b")


def test_new_identities_of_one_invite_cannot_share_the_evidence_among_them() -> None:
    book = AuditBook()
    findings = [found(f"sybil-{number}", beyond=1) for number in range(4)]
    verdicts = book.add(Step(1), findings, one_invite)
    assert verdicts == Verdicts((), ("shared",))
    assert "4 of 80 judged" in book.suspended("shared") or "3 of 60 judged" in book.suspended("shared")


def test_identities_that_left_before_their_rollouts_were_judged_are_added_up_too() -> None:
    world = World()
    for number in range(4):
        world.handle(replace(joined(f"sybil-{number}"), invite="shared"))
        world.handle(PeerLeft(PeerId(f"sybil-{number}"), "it has what it wanted"))
    world.handle(StepFinished(Step(1), {}, tuple(found(f"sybil-{number}", beyond=1) for number in range(4))))
    assert world.core._state.audit.suspended("shared")


def test_a_suspended_invite_gives_no_work_to_those_that_have_not_proved_themselves() -> None:
    world = World()
    for name in ("proved", "new", "other"):
        world.handle(replace(joined(name), invite="mine" if name == "other" else "shared"))
    world.handle(announced(0))
    for name in ("proved", "new", "other"):
        world.handle(held(name, 0))
    audit = world.core._state.audit
    world.handle(StepFinished(Step(1), {}, tuple(found("proved") for _ in range(20))))
    for step, name in ((2, "cheat"), (3, "second")):
        assert not audit.suspended("shared"), "one cheat does not suspend an invite that others share"
        world.handle(replace(joined(name), invite="shared"))
        done = world.handle(StepFinished(Step(step), {}, (found(name, far=1, beyond=1),)))
    assert {one.peer_id for one in only(done, Penalise)} == {"second", "new"}
    assert audit.suspended("shared")
    assert world.handle(replace(joined("newer"), invite="shared"))
    for name in ("proved", "newer", "other"):
        world.handle(wants(name, 1))
    assert (bool(world.take("proved")), bool(world.take("newer")), bool(world.take("other"))) == (True, False, True)
