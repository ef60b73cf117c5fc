from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import received_rollout, rollout_to_pb, segment_from_pb
from rollcast.wire.rollouts import Rollout, Segment
from rollcast.wire.routes import RouteShape
from rollcast.wire.token_ids import pack_ids

SHAPE = RouteShape(layers=2, experts=8, experts_per_token=2)
CHOSEN = np.array([[[7, 0], [1, 2]], [[3, 4], [6, 5]], [[0, 1], [1, 7]]])  # 3 tokens


def uploaded(routes: bytes, tokens: tuple[int, ...] = (4, 5, 6)) -> pb.Rollout:
    mask = b"\1" * len(tokens)
    segment = Segment("assistant", Epoch(0), Version(1), PeerId("p"), pack_ids(tokens), mask, routes=routes)
    return rollout_to_pb(Rollout(LeaseId(1), FencingToken(1), GroupId(1), 0, (segment,), "stop", 1.0))


@pytest.mark.parametrize(("experts", "size_bytes"), [(8, 12), (255, 12), (256, 24)])
def test_routes_take_a_byte_an_id_up_to_255_experts(experts: int, size_bytes: int) -> None:
    shape = RouteShape(2, experts, 2)
    routes = shape.to_bytes(np.where(CHOSEN == 7, experts - 1, CHOSEN))
    shape.check(routes, 3)
    assert len(routes) == 3 * shape.token_bytes == size_bytes
    assert shape.from_bytes(routes)[0].tolist() == [[0, experts - 1], [1, 2]]


@pytest.mark.parametrize(
    ("routes", "problem"),
    [
        (SHAPE.to_bytes(CHOSEN)[:-1], "do not fit"),
        (SHAPE.to_bytes(CHOSEN[:2]), "do not fit"),
        (SHAPE.to_bytes(np.minimum(CHOSEN, 4)), "do not ascend"),  # 4 twice
        (SHAPE.to_bytes(np.where(CHOSEN == 7, 8, CHOSEN)), "does not have"),
    ],
)
def test_routes_that_the_model_cannot_have_are_malformed(routes: bytes, problem: str) -> None:
    for take in (lambda one: received_rollout(one, SHAPE), lambda one: segment_from_pb(one.segments[0], routes=SHAPE)):
        with pytest.raises(MalformedMessage, match=problem):
            take(uploaded(routes))


def test_a_rollout_keeps_its_routes_in_its_body_alone() -> None:
    routes = SHAPE.to_bytes(CHOSEN)
    rollout = received_rollout(uploaded(routes), SHAPE)
    assert rollout.segments[0].routes == b""  # the coordinator's memory is not the place for them
    stored = pb.Rollout.FromString(rollout.body)
    assert segment_from_pb(stored.segments[0], routes=SHAPE).routes == routes


def test_routes_that_the_run_does_not_ask_for_are_discarded() -> None:
    rollout = received_rollout(uploaded(SHAPE.to_bytes(CHOSEN)))
    assert not pb.Rollout.FromString(rollout.body).segments[0].routes
    assert not segment_from_pb(uploaded(SHAPE.to_bytes(CHOSEN)).segments[0]).routes


def test_routes_of_the_context_are_for_one_prompt() -> None:
    def received(*contexts: bytes) -> Rollout:
        message = uploaded(b"")
        message.segments.append(message.segments[0])  # three tokens each
        for segment, context in zip(message.segments, contexts, strict=True):
            segment.context_routes = context
        return received_rollout(message, SHAPE)

    one = SHAPE.to_bytes(CHOSEN[:1])
    assert received(b"", b"").routed_prompt_tokens == 0
    assert received(4 * one, b"").routed_prompt_tokens == received(4 * one, 7 * one).routed_prompt_tokens == 5
    stored = pb.Rollout.FromString(received(one, b"").body)
    assert segment_from_pb(stored.segments[0], routes=SHAPE).context_routes == one
    for contexts in ((4 * one, 6 * one), (b"", 2 * one), (one[1:], b""), (SHAPE.to_bytes(CHOSEN[:1] * 0), b"")):
        with pytest.raises(MalformedMessage):
            received(*contexts)


def test_routes_of_one_rollout_are_limited() -> None:
    shape = RouteShape(1024, 255, 128)
    one = np.tile(np.arange(128), (1, 1024, 1))
    tokens = limits.ROUTES_BYTES_MAX // shape.token_bytes
    received_rollout(uploaded(shape.to_bytes(one) * tokens, (5,) * tokens), shape)
    with pytest.raises(MalformedMessage, match="too many routes"):
        received_rollout(uploaded(shape.to_bytes(one) * (tokens + 1), (5,) * (tokens + 1)), shape)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"layers": "two"}'])
def test_the_shape_is_read_from_a_description_of_a_model(text: str) -> None:
    model: dict[str, Any] = {"layers": 2, "width": 16, "experts": 8, "experts_per_token": 2}
    assert RouteShape.described(str(model).replace("'", '"')) == SHAPE
    assert RouteShape.described('{"layers": 2}') is None
    with pytest.raises(MalformedMessage):
        RouteShape.described(text)
