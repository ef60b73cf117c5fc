"""Test the lies of hostile peers, without a peer."""

from __future__ import annotations

import pytest

from bench.programs.hostile_peer import KINDS, LIES, Answers, _told
from rollcast.wire.proto import rollcast_pb2 as pb

PROMPT = pb.Segment(role=pb.USER, token_ids=[1, 2])


def honest(*tokens: int) -> pb.Rollout:
    parts = [
        pb.Segment(role=pb.ASSISTANT, version=version, token_ids=half, loss_mask=b"\1" * len(half))
        for version, half in enumerate((tokens[:1], tokens[1:]))
    ]
    return pb.Rollout(lease_id=7, segments=[PROMPT, *parts], finish_reason=pb.STOP)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("canned", ([5, 6, 9], pb.STOP)),
        ("copied", ([5, 6, 9], pb.STOP)),
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
    assert (list(last.token_ids), told.finish_reason) == expected
    assert (first, last.version, last.loss_mask) == (PROMPT, 1, b"\1" * len(last.token_ids))
    assert list(last.reported_logprobs) == [-1000.0] * len(last.token_ids)


def test_random_text_ends_as_the_honest_one_does() -> None:
    told = _told(honest(7, 8, 9), LIES["random_text"], Answers())
    assert told.segments[-1].token_ids[-1] == 9
    assert len(KINDS) == len(set(KINDS)) == 10
