from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import (
    body_of,
    lease_from_pb,
    lease_to_pb,
    received_rollout,
    rollout_from_pb,
    rollout_to_pb,
    sampling_from_pb,
    sampling_to_pb,
    with_body,
)
from rollcast.wire.rollouts import LeaseGrant, Rollout, Sampling, Segment, Slot, observation, prefix_digest, turn_start
from rollcast.wire.token_ids import pack_ids

counters = st.integers(0, limits.COUNTER_MAX)
tokens = st.lists(st.integers(0, limits.TOKEN_ID_MAX), min_size=1, max_size=8).map(tuple)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0.0, limits.TEMPERATURE_MAX),
    max_new_tokens=st.integers(1, limits.ROLLOUT_TOKENS_MAX),
    stop_token_ids=tokens,
    stop_strings=st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), max_size=3).map(tuple),
)
slots = st.lists(
    st.builds(Slot, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)),
    min_size=1,
    max_size=4,
    unique_by=lambda slot: slot.sample_index,
).map(tuple)
leases = st.builds(
    LeaseGrant,
    lease_id=counters,
    fencing_token=counters,
    group_id=counters,
    prompt_token_ids=tokens,
    slots=slots,
    sampling=samplings,
    deadline_s=st.floats(0.001, limits.DURATION_S_MAX),
    epoch=counters,
    oldest_useful_version=counters,
    kind=st.sampled_from(["training", "evaluation"]),
)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    ids = draw(tokens)
    return Segment(
        role=draw(st.sampled_from(["assistant", "tool", "user"])),
        epoch=Epoch(draw(counters)),
        version=Version(draw(counters)),
        peer_id=PeerId("12D3KooWpeer"),
        packed_ids=pack_ids(ids),
        loss_mask=bytes(draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)))),
        reported_logprobs=draw(st.sampled_from([(), tuple([-0.5] * len(ids))])),
    )


rollouts = st.builds(
    Rollout,
    lease_id=counters,
    fencing_token=counters,
    group_id=counters,
    sample_index=st.integers(0, 2**32 - 1),
    segments=st.lists(segments(), min_size=1, max_size=3).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", "interrupted"]),
    generate_s=st.floats(0.0, limits.DURATION_S_MAX),
)


@given(leases)
@settings(deadline=None, max_examples=50)
def test_leases_survive_the_wire(lease: LeaseGrant) -> None:
    assert lease_from_pb(pb.Lease.FromString(lease_to_pb(lease).SerializeToString())) == lease


@given(rollouts)
@settings(deadline=None, max_examples=50)
def test_rollouts_survive_the_wire(rollout: Rollout) -> None:
    assert rollout_from_pb(pb.Rollout.FromString(rollout_to_pb(rollout).SerializeToString())) == rollout


@given(samplings)
@settings(deadline=None, max_examples=50)
def test_sampling_survives_the_wire(sampling: Sampling) -> None:
    assert sampling_from_pb(sampling_to_pb(sampling)) == sampling


def a_lease() -> pb.Lease:
    return lease_to_pb(
        LeaseGrant(
            LeaseId(1),
            FencingToken(2),
            GroupId(3),
            (4, 5),
            (Slot(0, 7), Slot(1, 8)),
            Sampling(1.0, 8, (1,)),
            30.0,
            Epoch(0),
            Version(6),
        )
    )


def a_rollout() -> pb.Rollout:
    segment = Segment("assistant", Epoch(0), Version(6), PeerId("p"), pack_ids((4, 5, 1)), b"\1\1\1")
    return rollout_to_pb(Rollout(LeaseId(1), FencingToken(2), GroupId(3), 0, (segment,), "stop", 0.1))


LEASE_ATTACKS: dict[str, Callable[[pb.Lease], object]] = {
    "no prompt": lambda lease: lease.ClearField("prompt_token_ids"),
    "no slot": lambda lease: lease.ClearField("slots"),
    "slot twice": lambda lease: lease.slots.append(lease.slots[0]),
    "no deadline": lambda lease: setattr(lease, "deadline_s", 0.0),
    "endless deadline": lambda lease: setattr(lease, "deadline_s", math.inf),
    "deadline NaN": lambda lease: setattr(lease, "deadline_s", math.nan),
    "huge id": lambda lease: setattr(lease, "lease_id", 2**63),
    "huge version": lambda lease: setattr(lease, "oldest_useful_version", 2**64 - 1),
    "huge token": lambda lease: lease.prompt_token_ids.append(2**31),
    "no sampling": lambda lease: lease.ClearField("sampling"),
    "negative temperature": lambda lease: setattr(lease.sampling, "temperature", -1.0),
    "temperature NaN": lambda lease: setattr(lease.sampling, "temperature", math.nan),
    "endless completion": lambda lease: setattr(lease.sampling, "max_new_tokens", 2**31),
    "many stops": lambda lease: lease.sampling.stop_token_ids.extend(range(limits.STOP_TOKENS_MAX + 1)),
    "many stop strings": lambda lease: lease.sampling.stop_strings.extend(["x"] * (limits.STOP_STRINGS_MAX + 1)),
    "an empty stop string": lambda lease: lease.sampling.stop_strings.append(""),
    "a long stop string": lambda lease: lease.sampling.stop_strings.append("x" * (limits.STOP_STRING_LENGTH_MAX + 1)),
    "many slots": lambda lease: lease.slots.extend(
        pb.Slot(sample_index=index + 10) for index in range(limits.SLOTS_PER_LEASE_MAX)
    ),
}
ROLLOUT_ATTACKS: dict[str, Callable[[pb.Rollout], object]] = {
    "no segment": lambda rollout: rollout.ClearField("segments"),
    "many segments": lambda rollout: rollout.segments.extend([rollout.segments[0]] * limits.SEGMENTS_MAX),
    "no token": lambda rollout: rollout.segments[0].ClearField("packed_ids"),
    "half a token": lambda rollout: setattr(rollout.segments[0], "packed_ids", pack_ids((5, 6, 7)) + b"\0"),
    "huge token": lambda rollout: setattr(rollout.segments[0], "packed_ids", pack_ids((5, 2**31, 7))),
    "short mask": lambda rollout: setattr(rollout.segments[0], "loss_mask", b"\1\1"),
    "odd mask": lambda rollout: setattr(rollout.segments[0], "loss_mask", b"\1\2\1"),
    "few logprobs": lambda rollout: rollout.segments[0].reported_logprobs.append(0.0),
    "a log-probability NaN": lambda rollout: rollout.segments[0].reported_logprobs.extend([-1.0, math.nan, -1.0]),
    "infinite logprobs": lambda rollout: rollout.segments[0].reported_logprobs.extend([math.inf, -math.inf, -1.0]),
    "no peer": lambda rollout: rollout.segments[0].ClearField("peer_id"),
    "a path as peer": lambda rollout: setattr(rollout.segments[0], "peer_id", "../../etc/passwd"),
    "long peer": lambda rollout: setattr(rollout.segments[0], "peer_id", "p" * 65),
    "no role": lambda rollout: rollout.segments[0].ClearField("role"),
    "unknown role": lambda rollout: setattr(rollout.segments[0], "role", 99),
    "no finish reason": lambda rollout: rollout.ClearField("finish_reason"),
    "unknown finish reason": lambda rollout: setattr(rollout, "finish_reason", 99),
    "negative time": lambda rollout: setattr(rollout, "generate_s", -1.0),
    "time NaN": lambda rollout: setattr(rollout, "generate_s", math.nan),
    "huge group": lambda rollout: setattr(rollout, "group_id", 2**63),
    "huge version": lambda rollout: setattr(rollout.segments[0], "version", 2**63),
}


@pytest.mark.parametrize("attack", LEASE_ATTACKS)
def test_malformed_leases_are_refused(attack: str) -> None:
    lease = a_lease()
    lease_from_pb(lease)
    LEASE_ATTACKS[attack](lease)
    with pytest.raises(MalformedMessage):
        lease_from_pb(lease)


@pytest.mark.parametrize("attack", ROLLOUT_ATTACKS)
def test_malformed_rollouts_are_refused(attack: str) -> None:
    rollout = a_rollout()
    rollout_from_pb(rollout)
    ROLLOUT_ATTACKS[attack](rollout)
    with pytest.raises(MalformedMessage):
        rollout_from_pb(rollout)


def test_forged_logprobs_are_carried_as_evidence() -> None:
    rollout = a_rollout()
    rollout.segments[0].reported_logprobs.extend([12.0, -3.4e38, -1000.0])
    assert rollout_from_pb(rollout).segments[0].reported_logprobs[::2] == (12.0, -1000.0)


def test_oldest_version_is_that_of_the_oldest_segment() -> None:
    rollout = a_rollout()
    rollout.segments.append(rollout.segments[0])
    rollout.segments[1].version = 4
    checked = rollout_from_pb(rollout)
    assert checked.oldest_version == 4
    assert checked.completion_token_ids == (4, 5, 1, 4, 5, 1)


def test_a_received_rollout_keeps_its_bytes_without_unknown_fields() -> None:
    segment = pb.Segment(
        role=pb.ASSISTANT,
        peer_id="peer",
        packed_ids=pack_ids([7, 8]),
        loss_mask=b"\1\1",
        reported_logprobs=[-1.0, -2.0],
    )
    sent = pb.Rollout(lease_id=1, segments=[segment], finish_reason=pb.STOP)
    unknown = bytes([15 << 3 | 2, 3]) + b"abc"  # field 15, three bytes
    rollout = received_rollout(pb.Rollout.FromString(sent.SerializeToString() + unknown))
    assert pb.Rollout.FromString(rollout.body) == sent
    assert len(rollout.body) == len(sent.SerializeToString())
    assert rollout == rollout_from_pb(sent, logprobs=False)
    assert rollout.completion_token_ids == (7, 8)


def test_an_episode_joins_the_bodies_of_its_turns_with_what_its_environment_said() -> None:
    first, second = (replace(made_rollout(), segments=(turn,)) for turn in (turn_of(3, -0.5), turn_of(4, -0.25)))
    said = observation("tool", (7, 8))
    whole = replace(first, segments=(*first.segments, said, *second.segments))
    joined = with_body(whole, [body_of(first), said, body_of(second)])
    read = pb.Rollout.FromString(joined.body)
    assert [list(one.reported_logprobs) for one in read.segments] == [[-0.5], [], [-0.25]]
    assert rollout_from_pb(read).segments[1] == said
    assert (whole.oldest_version, whole.newest_version) == (3, 4)
    assert turn_start(whole.segments) == 2
    assert prefix_digest(whole.segments[:2]) != prefix_digest((whole.segments[0], observation("user", (7, 8))))


def turn_of(version: int, logprob: float) -> Segment:
    return Segment("assistant", Epoch(0), Version(version), PeerId("p"), pack_ids((5,)), b"\1", (logprob,))


def made_rollout() -> Rollout:
    return Rollout(LeaseId(1), FencingToken(1), GroupId(1), 0, (turn_of(3, -0.5),), "stop", 0.5)
