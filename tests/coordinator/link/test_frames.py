"""Test the frames between gateway and core: what goes in comes out, however it is cut, and garbage is refused."""

from __future__ import annotations

import contextlib
import struct
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.events.events import (
    Event,
    HeartbeatReceived,
    LeasesReturned,
    PartialReceived,
    PeerLeft,
    VersionHeld,
    WorkRequested,
)
from coordinator.core.events.reach_events import ReachabilityTold, RecordGiven
from coordinator.link import frames
from coordinator.rpc.heartbeats import facts_of
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import PartialRollout, Rollout, Segment
from rollcast.wire.routes import RouteShape
from rollcast.wire.token_ids import pack_ids

ALICE = PeerId("alice")
NUMBERS = st.integers(0, 2**63 - 1)
TEXTS = st.text(max_size=40)


def segment(ids: list[int]) -> Segment:
    return Segment("assistant", Epoch(0), Version(3), ALICE, pack_ids(ids), b"\1" * len(ids), sampler="jax-cpu")


def rollout(ids: list[int], body: bytes) -> Rollout:
    return Rollout(LeaseId(1), FencingToken(2), GroupId(3), 0, (segment(ids),), "stop", 0.5, body=body)


UPLOADS = st.builds(
    frames.Upload, NUMBERS, NUMBERS, st.builds(rollout, st.lists(st.integers(0, 2**31 - 1), max_size=50), st.binary())
)
TO_CORE = st.one_of(
    UPLOADS,
    st.builds(frames.Close, NUMBERS, TEXTS, st.booleans()),
    st.builds(frames.Renew, NUMBERS, st.binary(max_size=100)),
    st.builds(frames.Hello, NUMBERS, TEXTS, TEXTS, TEXTS, st.binary(max_size=100), st.just(("a", "b"))),
    st.builds(frames.Beat),
)


@given(st.lists(st.lists(TO_CORE, min_size=1, max_size=4), max_size=4), st.lists(st.integers(1, 400)))
def test_items_come_out_as_they_went_in_however_the_stream_is_cut(
    turns: list[list[frames.ToCore]], cuts: list[int]
) -> None:
    stream = b"".join(frames.frame([frames.encode(item) for item in turn]) for turn in turns)
    parser, bodies = frames.FrameParser(), list[bytes]()
    for cut in [*cuts, len(stream)]:
        bodies += parser.bodies(stream[:cut])
        stream = stream[cut:]
    assert [frames.items_to_core(body) for body in bodies] == turns


@given(UPLOADS)
def test_the_body_of_a_rollout_crosses_unchanged(upload: frames.Upload) -> None:
    (body,) = frames.FrameParser().bodies(frames.frame([frames.encode(upload)]))
    (item,) = frames.items_to_core(body)
    assert isinstance(item, frames.Upload)
    assert item.rollout.body == upload.rollout.body, "a rollout's comparison leaves its body out"


@given(st.binary(max_size=200))
def test_garbage_is_malformed_and_nothing_else(body: bytes) -> None:
    for read in (frames.items_to_core, frames.items_to_gateway):
        with contextlib.suppress(MalformedMessage):
            assert isinstance(read(body), list)


EVENTS = [
    HeartbeatReceived(ALICE, facts_of(pb.Heartbeat(state="idle", links=[pb.LinkReport(peer_id="bob", rtt_s=0.5)]))),
    WorkRequested(ALICE, 7),
    VersionHeld(ALICE, Epoch(1), Version(2), 300),
    LeasesReturned(ALICE, (LeaseId(4), LeaseId(5)), "too much"),
    PartialReceived(ALICE, PartialRollout(LeaseId(1), FencingToken(2), 3, 4, (segment([5]),))),
    ReachabilityTold(ALICE, "cone", circuits=("a", "b")),
    RecordGiven(ALICE, b"\0\xff"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_of_a_session_cross(event: frames.SessionEvent) -> None:
    (body,) = frames.FrameParser().bodies(frames.frame([frames.encode(frames.told(3, event))]))
    (item,) = frames.items_to_core(body)
    assert isinstance(item, frames.Told)
    assert frames.event_in(item) == event


@pytest.mark.parametrize(
    "item",
    [
        frames.told(1, PeerLeft(ALICE, "it is not for a gateway to say")),
        frames.Told(1, "WorkRequested", frames.told(1, EVENTS[2]).event),
        frames.Told(1, "", frames.told(1, EVENTS[1]).event),
    ],
    ids=["another event", "another form", "no name"],
)
def test_other_events_do_not_cross(item: frames.Told) -> None:
    with pytest.raises(MalformedMessage):
        frames.event_in(item)


def test_answers_have_the_type_that_was_asked_for() -> None:
    shape = RouteShape(2, 8, 2)
    assert frames.value_in(frames.answer("route_shape", shape), RouteShape | None) == shape
    assert frames.value_in(frames.answer("route_shape", None), RouteShape | None) is None
    with pytest.raises(MalformedMessage):
        frames.value_in(frames.answer("route_shape", "2"), RouteShape | None)


def test_frames_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 100)
    with pytest.raises(ValueError, match="bytes"):
        frames.frame([bytes(101)])
    with pytest.raises(MalformedMessage, match="at most 100 bytes"):
        frames.FrameParser().bodies(struct.pack("<I", 101))


def test_every_event_that_may_cross_is_an_event_of_the_core() -> None:
    assert set(get_args(frames.SessionEvent)) <= set(get_args(Event))
