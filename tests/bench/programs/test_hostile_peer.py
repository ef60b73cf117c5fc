"""Test the lies of hostile peers, without a peer."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from bench.programs.hostile_peer import (
    KINDS,
    LIES,
    RINGS,
    Answers,
    AnyVersion,
    SharedAnswers,
    _told,
    false_accusations,
    half_of_the_layers,
    one_bit,
)
from rollcast.runtime.errors import RollcastError
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.token_ids import last_id, pack_ids, unpack_ids
from rollcast.wire.versions.receipts import verify_receipt

PROMPT = pb.Segment(role=pb.USER, packed_ids=pack_ids([1, 2]))


def honest(*tokens: int) -> pb.Rollout:
    parts = [
        pb.Segment(role=pb.ASSISTANT, version=version, packed_ids=pack_ids(half), loss_mask=b"\1" * len(half))
        for version, half in enumerate((tokens[:1], tokens[1:]))
    ]
    return pb.Rollout(lease_id=7, segments=[PROMPT, *parts], finish_reason=pb.STOP)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("canned", ([5, 6, 9], pb.STOP)),
        ("copied", ([5, 6, 9], pb.STOP)),
        ("best_of_n", ([7, 8, 9], pb.STOP)),
        ("truncated", ([7], pb.LENGTH)),
        ("over_long", ([7, 8, 9, 7, 8, 9], pb.STOP)),
        ("forged_logprobs", ([7, 8, 9], pb.STOP)),
    ],
)
def test_the_second_answer_is_the_lie(kind: str, expected: tuple[list[int], int]) -> None:
    said = Answers()
    _told(honest(5, 6, 9), LIES[kind], said)
    told = _told(honest(7, 8, 9), LIES[kind], said)
    first, last = told.segments
    assert (list(unpack_ids(last.packed_ids)), told.finish_reason) == expected
    assert (first, last.version, last.loss_mask) == (PROMPT, 1, b"\1" * len(expected[0]))
    assert list(last.reported_logprobs) == [-1000.0] * len(expected[0])


def test_random_text_ends_as_the_honest_one_does() -> None:
    told = _told(honest(7, 8, 9), LIES["random_text"], Answers())
    assert last_id(told.segments[-1].packed_ids) == 9
    assert len(KINDS) == len(set(KINDS)) == 15
    assert set(RINGS) < set(KINDS)


def test_the_best_answer_is_that_of_the_same_group() -> None:
    said, lie = Answers(), LIES["best_of_n"]
    _told(honest(9, 9, 9), lie, said)
    assert unpack_ids(_told(honest(1, 2, 3), lie, said).segments[-1].packed_ids) == (9, 9, 9)
    other = honest(1, 2, 3)
    other.group_id = 5
    assert unpack_ids(_told(other, lie, said).segments[-1].packed_ids) == (1, 2, 3)


def test_other_weights_have_the_same_shapes() -> None:
    params = {f"layers.{number}.feed_forward.down.kernel": np.full((2, 2), number + 1.0) for number in range(2)}
    smaller = half_of_the_layers(params)
    assert [float(leaf.sum()) for leaf in smaller.values()] == [4.0, 0.0]
    assert [float(leaf.max()) for leaf in one_bit(params).values()] == [1.0, 2.0]
    kept = AnyVersion(Random(0))
    newest = [float(kept({"w": np.full(1, float(number))})["w"][0]) for number in range(20)]
    assert all(0 <= number - one < 5 for number, one in enumerate(newest))
    assert any(one != number for number, one in enumerate(newest))


def test_accomplices_send_each_others_answers_of_the_same_group_if_there_are_any(tmp_path: Path) -> None:
    first, second = (Answers(SharedAnswers(tmp_path, name)) for name in ("one", "two"))
    lie = LIES["copying_ring"]
    assert unpack_ids(_told(honest(5, 6), lie, first).segments[-1].packed_ids) == (5, 6)  # it is the first of all
    other = honest(1, 2)
    other.group_id = 5
    _told(other, lie, first)
    assert unpack_ids(_told(honest(7, 8), lie, second).segments[-1].packed_ids) == (5, 6)
    elsewhere = honest(3, 4)
    elsewhere.group_id = 9
    assert unpack_ids(_told(elsewhere, lie, second).segments[-1].packed_ids) == (1, 2)
    assert unpack_ids(_told(honest(5, 9), lie, first).segments[-1].packed_ids) == (7, 8)


def test_accomplices_vouch_for_lies_with_receipts_that_the_accused_did_not_sign() -> None:
    accuser, accused = Identity.generate(), Identity.generate()
    bare, forged = false_accusations([accused.peer_id], Version(3), RunId("run"), accuser)
    assert (bare.culprit_peer_id, bare.version, bare.HasField("receipt")) == (accused.peer_id, 3, False)
    assert verify_receipt(forged.receipt, accuser.peer_id).version == 3
    with pytest.raises(RollcastError):
        verify_receipt(forged.receipt, accused.peer_id)
