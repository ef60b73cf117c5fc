from __future__ import annotations

import json
from typing import Any

import pytest

from peer.engines.sglang.answers import Asked, StaleAnswer, answers_bytes_max, read_answers
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.rollouts import Sampling

ASKED = Asked((5, 6), 3, Sampling(1.0, 8, (1,)), 7)


def completion(entries: Any, **values: Any) -> dict[str, Any]:
    meta = {"weight_version": "a", "finish_reason": {"type": "length"}, "output_token_logprobs": entries}
    return {"text": "", "meta_info": meta | values}


def read(found: Any) -> Any:
    return read_answers(json.dumps(found).encode(), [ASKED], "a", 32)


def test_tokens_and_log_probabilities_are_read() -> None:
    (answer,) = read([completion([[-0.5, 4, "d"], [1e-7, 31, None]])])
    assert (answer.token_ids, answer.logprobs) == ((4, 31), (-0.5, 0.0))


def test_nothing_follows_a_stop_token() -> None:
    (answer,) = read([completion([[-0.5, 4, None], [-1.0, 1, None], [-1.0, 2, None]])])
    assert (answer.token_ids, answer.logprobs) == ((4, 1), (-0.5, -1.0))


@pytest.mark.parametrize(
    "found",
    [
        {},
        [],
        [1],
        [{"meta_info": []}],
        [completion([[-1.0, 4, None]])] * 2,
        [completion(None)],
        [completion([])],
        [completion([[-1.0, 4, None]] * 4)],
        [completion([[-1.0]])],
        [completion([-1.0])],
        [completion([[-1.0, 32, None]])],
        [completion([[-1.0, -1, None]])],
        [completion([[-1.0, True, None]])],
        [completion([[-1.0, "4", None]])],
        [completion([[None, 4, None]])],
        [completion([[float("nan"), 4, None]])],
        [completion([[float("-inf"), 4, None]])],
        [completion([["-1", 4, None]])],
    ],
)
def test_what_is_no_answer_is_refused(found: Any) -> None:
    with pytest.raises(MalformedMessage, match="cannot be used"):
        read(found)


@pytest.mark.parametrize("body", [b"", b"\xff", b"[", b"[" * 100_000], ids=["empty", "no text", "cut", "deep"])
def test_bytes_that_are_not_json_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_answers(body, [ASKED], "a", 32)


@pytest.mark.parametrize(
    "values",
    [
        {"weight_version": "b"},
        {"weight_version": None},
        {"finish_reason": None},
        {"finish_reason": {"type": "abort", "message": "paused"}},
    ],
)
def test_tokens_of_other_weights_and_aborted_ones_are_stale(values: dict[str, Any]) -> None:
    with pytest.raises(StaleAnswer):
        read([completion([[-1.0, 4, None]], **values)])


def test_an_answers_size_is_limited_by_what_was_asked() -> None:
    assert answers_bytes_max([ASKED]) < 20_000
    assert answers_bytes_max([ASKED] * 2) == 2 * answers_bytes_max([ASKED])
