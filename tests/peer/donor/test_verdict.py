"""What a machine's owner is told about its rollouts."""

from __future__ import annotations

import math

import pytest

from peer.donor.verdict import CAUSES, verdict_from
from rollcast.wire.limits import TEXT_LENGTH_MAX
from rollcast.wire.proto import rollcast_pb2 as pb


def test_the_owner_is_told_the_token_both_values_the_likely_causes_and_what_to_do() -> None:
    found = verdict_from(
        pb.AuditVerdict(
            state="quarantined",
            reason="sent tokens",
            rollout_id=7,
            token_at=12,
            margin_nats=0.5,
            bound_nats=0.001,
            sampler="vllm-cpu",
        )
    )
    assert found is not None
    assert found["token"] == "token 12 of rollout 7, sampled with vllm-cpu"
    assert (found["margin_nats"], found["bound_nats"], found["causes"]) == (0.5, 0.001, list(CAUSES))
    assert "the run judges it anew, once" in found["to_do"]


@pytest.mark.parametrize("state", ["good", "probation", "", "odd"])
def test_an_owner_whose_machine_is_in_order_sees_nothing(state: str) -> None:
    assert verdict_from(pb.AuditVerdict(state=state)) is None


@pytest.mark.parametrize("margin", [0.0, math.nan, math.inf])
def test_without_a_token_or_with_an_odd_number_only_the_reason_is_shown(margin: float) -> None:
    found = verdict_from(pb.AuditVerdict(state="quarantined", reason="x" * 10_000, margin_nats=margin))
    assert found is not None
    assert (found["token"], found["causes"], found["margin_nats"]) == ("", [], 0.0)
    assert len(found["reason"]) == TEXT_LENGTH_MAX
