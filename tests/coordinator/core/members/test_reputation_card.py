"""The cards of peers and invites, whom they are sent to, and that they outlive a coordinator."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.events.actions import Note, SendToPeer
from coordinator.core.events.events import PeerLeft, StepFinished
from coordinator.core.events.operator_events import PeerEnabled
from coordinator.core.members.reputation_card import Card, facts_of_saved
from rollcast.wire.ids import PeerId, Step
from tests.coordinator.audited import audited_world, finding
from tests.coordinator.core_world import World, joined, only

A = PeerId("a")


def card(world: World, peer: str = "a") -> Card:
    return world.core.state.card_of(PeerId(peer))


def test_a_card_counts_what_was_judged_left_out_and_trained_before() -> None:
    world = audited_world(*(finding(number) for number in range(20)), finding(30, beyond=1))
    shown = card(world)
    assert (shown.state, shown.rollouts, shown.tokens, shown.off) == ("watched", 21, 420, 1)
    assert (shown.left_out, shown.trained) == (1, 20)
    assert (shown.worst_nats, shown.floor_nats, shown.worst_rollout, shown.worst_at) == (0.02, 0.01, 30, 3)
    assert (shown.sampler, shown.undo) == ("jax-cpu", "")
    assert card(audited_world(), "b").state == "probation"
    assert card(audited_world(*(finding(number) for number in range(20)))).state == "good"


def test_a_convicted_peer_is_told_why_and_its_card_names_the_way_back() -> None:
    world = audited_world()
    actions = world.handle(StepFinished(Step(2), {}, (finding(7, beyond=1, far=1), finding(8, "b"))))
    (sent,) = (one for one in only(actions, SendToPeer) if one.message.HasField("audit_verdict"))
    verdict = sent.message.audit_verdict
    assert (sent.peer_id, verdict.state, verdict.rollout_id, verdict.token_at) == (A, "quarantined", 7, 3)
    assert (verdict.margin_nats, verdict.bound_nats, verdict.sampler) == (0.5, 0.01, "jax-cpu")
    shown = card(world)
    assert shown.undo.startswith("rollcast workers enable a;")
    assert "no work" in shown.act
    world.now += 1.0
    again = world.handle(replace(joined("a"), invite="ann"))
    told = [one.message.audit_verdict.state for one in only(again, SendToPeer) if one.peer_id == A]
    assert "quarantined" in told
    enabled = only(world.handle(PeerEnabled(A)), SendToPeer)
    assert "probation" in [one.message.audit_verdict.state for one in enabled]


def test_a_convicted_peer_that_comes_back_with_another_engine_is_judged_anew_once() -> None:
    world = audited_world()
    convicted = StepFinished(Step(2), {}, (finding(7, beyond=1, far=1), finding(8, "b")))
    world.handle(convicted)

    def joins(sampler: str) -> list[Note]:
        world.handle(PeerLeft(A, "restarted", finished=True))
        actions = world.handle(replace(joined("a"), invite="ann", sampler=sampler))
        return [note for note in only(actions, Note) if note.kind == "appealed"]

    assert joins("jax-cpu") == [], "it is the engine that was judged"
    assert "once it appeals itself" in card(world).undo
    (note,) = joins("vllm-cuda")
    assert (note.subject, note.detail[:25]) == ("a", "came back with vllm-cuda ")
    shown = card(world)
    assert (shown.state, shown.because) == (
        "probation",
        "0 of the first 20 rollouts judged since it appealed with vllm-cuda",
    )
    audit = world.core._state.audit
    assert audit.share_audited(A, "ann") == 1.0
    assert audit.on_appeal(A), "it shares the small allowance of newcomers"
    assert facts_of_saved(world.core.audit_json(), "a")["reputation"].startswith("probation")
    world.handle(replace(convicted, step=Step(3)))
    assert card(world).state == "quarantined"
    assert joins("sglang-cuda") == [], "it may appeal once"
    assert "appeals itself" not in card(world).undo


def test_no_appeal_undoes_what_the_operator_or_a_receipt_did() -> None:
    world = audited_world(finding(7, beyond=1, far=1), finding(8, "b"))
    world.core._state.members.reputation(A).quarantined = "sent a corrupt chunk, by its own receipt"
    world.handle(replace(joined("a"), invite="ann", sampler="vllm-cuda"))
    assert card(world).state == "quarantined"


def test_what_a_ledger_keeps_is_told_in_words() -> None:
    world = audited_world(*(finding(number) for number in range(3)), finding(9, beyond=1))
    facts = facts_of_saved(world.core.audit_json(), "a")
    assert facts["audited"] == "80 tokens in 4 rollouts"
    assert facts["tokens beyond the bound"] == "1 of 80 tokens in 4 rollouts"
    assert facts["trained on"] == "3 of the audited rollouts, 1 left out"
    assert facts["bound"] == "0.01 nats, the most that an honest jax-cpu deviates"
    assert facts_of_saved(world.core.audit_json(), "b") == {}
