"""Convert leases and rollouts from and to the wire, with every bound of received ones checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from rollcast.wire import limits
from rollcast.wire.checks import require
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import (
    PREFIX_DIGEST_BYTES,
    FinishReason,
    LeaseGrant,
    LeaseKind,
    PartialRollout,
    Rollout,
    Sampling,
    Segment,
    SegmentRole,
    Slot,
)
from rollcast.wire.routes import RouteShape
from rollcast.wire.token_ids import ID_BYTES, id_count, largest_id

_LOGPROB_BYTES = 4  # packed
_BESIDE_LOGPROBS = [name for name in pb.Segment.DESCRIPTOR.fields_by_name if name != "reported_logprobs"]

# ---------------------------------------------------------------- to the wire


def sampling_to_pb(sampling: Sampling) -> pb.Sampling:
    """Convert sampling parameters to a message."""
    return pb.Sampling(
        temperature=sampling.temperature,
        max_new_tokens=sampling.max_new_tokens,
        stop_token_ids=sampling.stop_token_ids,
        stop_strings=sampling.stop_strings,
    )


def lease_to_pb(lease: LeaseGrant) -> pb.Lease:
    """Convert a lease to a message."""
    return pb.Lease(
        lease_id=lease.lease_id,
        fencing_token=lease.fencing_token,
        group_id=lease.group_id,
        prompt_token_ids=lease.prompt_token_ids,
        slots=[slot_to_pb(slot) for slot in lease.slots],
        sampling=sampling_to_pb(lease.sampling),
        deadline_s=lease.deadline_s,
        epoch=lease.epoch,
        oldest_useful_version=lease.oldest_useful_version,
        oldest_own_version=lease.oldest_own_version,
        kind=_KIND_TO_PB[lease.kind],
        keep_version_s=lease.keep_version_s,
    )


def slot_to_pb(slot: Slot) -> pb.Slot:
    """Convert a slot to a message."""
    return pb.Slot(
        sample_index=slot.sample_index, seed=slot.seed, prefix=[segment_to_pb(segment) for segment in slot.prefix]
    )


def partial_to_pb(partial: PartialRollout) -> pb.PartialRollout:
    """Convert a partial rollout to a message."""
    return pb.PartialRollout(
        lease_id=partial.lease_id,
        fencing_token=partial.fencing_token,
        sample_index=partial.sample_index,
        position=partial.position,
        segments=[segment_to_pb(segment) for segment in partial.segments],
    )


def segment_to_pb(segment: Segment) -> pb.Segment:
    """Convert a segment to a message."""
    return pb.Segment(
        role=_ROLE_TO_PB[segment.role],
        epoch=segment.epoch,
        version=segment.version,
        peer_id=segment.peer_id,
        packed_ids=segment.packed_ids,
        loss_mask=segment.loss_mask,
        reported_logprobs=segment.reported_logprobs,
        routes=segment.routes,
        context_routes=segment.context_routes,
        sampler=segment.sampler,
    )


def finish_reason_to_pb(reason: FinishReason) -> pb.FinishReason:
    """Convert a finish reason to its value in messages."""
    return _FINISH_TO_PB[reason]


def rollout_to_pb(rollout: Rollout) -> pb.Rollout:
    """Convert a rollout to a message."""
    return pb.Rollout(
        lease_id=rollout.lease_id,
        fencing_token=rollout.fencing_token,
        group_id=rollout.group_id,
        sample_index=rollout.sample_index,
        segments=[segment_to_pb(segment) for segment in rollout.segments],
        finish_reason=finish_reason_to_pb(rollout.finish_reason),
        generate_s=rollout.generate_s,
        prefix_digest=rollout.prefix_digest,
    )


# ---------------------------------------------------------------- from the wire


def sampling_from_pb(message: pb.Sampling) -> Sampling:
    """Convert received sampling parameters, checking every bound.

    Raises:
        MalformedMessage: temperature, length, number of stop tokens, or number or length of stop strings out of range.
    """
    require(0.0 <= message.temperature <= limits.TEMPERATURE_MAX, "temperature out of range")
    require(1 <= message.max_new_tokens <= limits.ROLLOUT_TOKENS_MAX, "max_new_tokens out of range")
    require(len(message.stop_token_ids) <= limits.STOP_TOKENS_MAX, "too many stop tokens")
    require(len(message.stop_strings) <= limits.STOP_STRINGS_MAX, "too many stop strings")
    lengths_are_right = all(1 <= len(text) <= limits.STOP_STRING_LENGTH_MAX for text in message.stop_strings)
    require(lengths_are_right, "a stop string's length is out of range")
    stop_token_ids = tokens_from_pb(message.stop_token_ids)
    return Sampling(message.temperature, message.max_new_tokens, stop_token_ids, tuple(message.stop_strings))


def lease_from_pb(message: pb.Lease) -> LeaseGrant:
    """Convert a received lease, checking every bound.

    Raises:
        MalformedMessage: a number is out of range, there is no prompt or no slot, a slot appears twice, or the kind is
            unknown.
    """
    require(message.kind in _KIND_FROM_PB, "unknown kind of lease")
    require(1 <= len(message.prompt_token_ids) <= limits.PROMPT_TOKENS_MAX, "prompt length out of range")
    require(1 <= len(message.slots) <= limits.SLOTS_PER_LEASE_MAX, "number of slots out of range")
    require(len({slot.sample_index for slot in message.slots}) == len(message.slots), "a slot occurs twice")
    require(0.0 < message.deadline_s <= limits.DURATION_S_MAX, "deadline out of range")
    require(0.0 <= message.keep_version_s <= limits.DURATION_S_MAX, "how long to keep a version is out of range")
    return LeaseGrant(
        lease_id=LeaseId(_counter(message.lease_id)),
        fencing_token=FencingToken(_counter(message.fencing_token)),
        group_id=GroupId(_counter(message.group_id)),
        prompt_token_ids=tokens_from_pb(message.prompt_token_ids),
        slots=tuple(slot_from_pb(slot) for slot in message.slots),
        sampling=sampling_from_pb(message.sampling),
        deadline_s=message.deadline_s,
        epoch=Epoch(_counter(message.epoch)),
        oldest_useful_version=Version(_counter(message.oldest_useful_version)),
        oldest_own_version=Version(_counter(message.oldest_own_version)),
        kind=_KIND_FROM_PB[message.kind],
        keep_version_s=message.keep_version_s,
    )


def slot_from_pb(message: pb.Slot) -> Slot:
    """Convert a received slot, checking every bound.

    Raises:
        MalformedMessage: the prefix is too long, or a segment of it is malformed.
    """
    return Slot(message.sample_index, message.seed, _segments(message.prefix))


def partial_from_pb(message: pb.PartialRollout) -> PartialRollout:
    """Convert a received partial rollout, checking its form; the coordinator decides whether it fits a lease.

    Raises:
        MalformedMessage: no segment, too many segments or tokens, or a segment is malformed.
    """
    require(len(message.segments) >= 1, "no segment")
    require(message.position <= limits.ROLLOUT_TOKENS_MAX, "position out of range")
    return PartialRollout(
        lease_id=LeaseId(_counter(message.lease_id)),
        fencing_token=FencingToken(_counter(message.fencing_token)),
        sample_index=message.sample_index,
        position=message.position,
        segments=_segments(message.segments),
    )


def segment_from_pb(message: pb.Segment, *, logprobs: bool = True, routes: RouteShape | None = None) -> Segment:
    """Convert a received segment, checking every bound.

    Reported log-probabilities may be any finite number, because they are only evidence by default.

    Args:
        logprobs: whether to keep the log-probabilities.
        routes: the shape of routes to keep; None: they are left out.

    Raises:
        MalformedMessage: unknown role, no token, a mask or routes that do not fit, or a number out of range.
    """
    count = id_count(message.packed_ids)
    require(len(message.packed_ids) == ID_BYTES * count, "the token ids are cut off within one")
    require(message.role in _ROLE_FROM_PB, "unknown segment role")
    require(1 <= count <= limits.ROLLOUT_TOKENS_MAX, "segment length out of range")
    require(len(message.loss_mask) == count, "the loss mask has another length than the tokens")
    require(not message.loss_mask.translate(None, b"\0\1"), "the loss mask holds other values than 0 and 1")
    require(
        len(message.reported_logprobs) in (0, count),
        "the number of log-probabilities is neither that of the tokens nor 0",
    )
    require(_has_finite_logprobs(message), "a log-probability is not finite")
    require(_PEER_ID.fullmatch(message.peer_id) is not None, "a segment's peer id is malformed")
    require(_SAMPLER.fullmatch(message.sampler) is not None, "a segment's kind of sampler is malformed")
    packed_ids = message.packed_ids
    largest = largest_id(packed_ids)
    require(largest <= limits.TOKEN_ID_MAX, "a token id is out of range")
    if routes is not None:
        _check_routes(message, routes)
    return Segment(
        role=_ROLE_FROM_PB[message.role],
        epoch=Epoch(_counter(message.epoch)),
        version=Version(_counter(message.version)),
        peer_id=PeerId(message.peer_id),
        packed_ids=packed_ids,
        loss_mask=message.loss_mask,
        reported_logprobs=tuple(message.reported_logprobs) if logprobs else (),
        routes=message.routes if routes is not None else b"",
        context_routes=message.context_routes if routes is not None else b"",
        sampler=message.sampler,
        largest_received=largest,
    )


def _has_finite_logprobs(message: pb.Segment) -> bool:
    """Whether every reported log-probability is finite.

    Reading thousands of them as Python numbers takes most of the time that an upload takes to be read. Alone in a
    message they are serialized as the field's tag, their length, and packed little-endian numbers.
    """
    count = len(message.reported_logprobs)
    if not count:
        return True
    alone = pb.Segment.FromString(message.SerializeToString())  # a third of the time of CopyFrom
    for name in _BESIDE_LOGPROBS:
        alone.ClearField(name)
    head_bytes = 1 + max(1, -(-(_LOGPROB_BYTES * count).bit_length() // 7))
    numbers = np.frombuffer(alone.SerializeToString(), "<f4", count, head_bytes)
    return bool(np.isfinite(numbers).all())


def finish_reason_from_pb(value: int) -> FinishReason:
    """Convert a received finish reason.

    Raises:
        MalformedMessage: the value is unknown.
    """
    require(value in _FINISH_FROM_PB, "unknown finish reason")
    return _FINISH_FROM_PB[value]


def received_rollout(message: pb.Rollout, routes: RouteShape | None = None) -> Rollout:
    """Convert a received rollout as ``rollout_from_pb`` does, and keep the bytes to be stored.

    Converting thousands of numbers back and forth costs more than everything else that an upload needs. So its body is
    kept as received, without unknown fields, and its log-probabilities and routes are in the body only.

    Args:
        routes: the shape of the routes that the run asks for; None: it asks for none, and received ones are discarded.

    Raises:
        MalformedMessage: see ``rollout_from_pb``; or the routes are malformed or too many.
    """
    message.DiscardUnknownFields()
    rollout = rollout_from_pb(message, logprobs=False)
    routed_prompt_tokens = _take_routes(message.segments, routes)
    return Rollout(
        *(rollout.lease_id, rollout.fencing_token, rollout.group_id, rollout.sample_index, rollout.segments),
        *(rollout.finish_reason, rollout.generate_s, message.SerializeToString(deterministic=True)),
        *(routed_prompt_tokens, rollout.prefix_digest),
    )


def without_content(message: pb.Rollout) -> Rollout:
    """Return what names the attempt of a received rollout, without reading its segments.

    Raises:
        MalformedMessage: a number is out of range.
    """
    return Rollout(
        lease_id=LeaseId(_counter(message.lease_id)),
        fencing_token=FencingToken(_counter(message.fencing_token)),
        group_id=GroupId(_counter(message.group_id)),
        sample_index=message.sample_index,
        segments=(),
        finish_reason="stop",
        generate_s=0.0,
    )


def _take_routes(segments: Sequence[pb.Segment], shape: RouteShape | None) -> int:
    """Check the routes of a rollout, or discard them, and return the length of the prompt that they are for; 0: none.

    Raises:
        MalformedMessage: they are malformed, too many, or not for one prompt.
    """
    total = sum(len(one.routes) + len(one.context_routes) for one in segments)
    require(total <= limits.ROUTES_BYTES_MAX, "too many routes")
    if not total:
        return 0
    prompts, before = set[int](), 0
    for segment in segments:
        if shape is None:
            segment.ClearField("routes")
            segment.ClearField("context_routes")
        else:
            _check_routes(segment, shape)
            if segment.context_routes:
                prompts.add(len(segment.context_routes) // shape.token_bytes + 1 - before)
        before += id_count(segment.packed_ids)
    require(len(prompts) <= 1 and min(prompts, default=1) >= 1, "the routes are not for one prompt")
    return max(prompts, default=0)


def _check_routes(segment: pb.Segment, shape: RouteShape) -> None:
    if segment.routes:
        shape.check(segment.routes, id_count(segment.packed_ids))
    shape.check(segment.context_routes, len(segment.context_routes) // shape.token_bytes)


def rollout_from_pb(message: pb.Rollout, *, logprobs: bool = True) -> Rollout:
    """Convert a received rollout, checking its form; the coordinator decides whether it fits a lease.

    Raises:
        MalformedMessage: no segment, too many segments or tokens, or a segment is malformed.
    """
    require(len(message.segments) >= 1, "no segment")
    require(len(message.prefix_digest) in (0, PREFIX_DIGEST_BYTES), "a prefix's digest has another length")
    require(0.0 <= message.generate_s <= limits.DURATION_S_MAX, "generation time out of range")
    return Rollout(
        lease_id=LeaseId(_counter(message.lease_id)),
        fencing_token=FencingToken(_counter(message.fencing_token)),
        group_id=GroupId(_counter(message.group_id)),
        sample_index=message.sample_index,
        segments=_segments(message.segments, logprobs=logprobs),
        finish_reason=finish_reason_from_pb(message.finish_reason),
        generate_s=message.generate_s,
        prefix_digest=message.prefix_digest,
    )


def body_of(rollout: Rollout) -> bytes:
    """Return the message of a rollout: as it was received, with what is kept in the body only, or made here."""
    return rollout.body or rollout_to_pb(rollout).SerializeToString(deterministic=True)


def with_body(rollout: Rollout, parts: Iterable[Segment | bytes]) -> Rollout:
    """Return the rollout with a body made of these segments and of the segments of these bodies, in order."""
    message = rollout_to_pb(replace(rollout, segments=()))
    for part in parts:
        message.segments.extend(
            [segment_to_pb(part)] if isinstance(part, Segment) else pb.Rollout.FromString(part).segments
        )
    return replace(rollout, body=message.SerializeToString(deterministic=True))


def _segments(messages: Sequence[pb.Segment], *, logprobs: bool = True) -> tuple[Segment, ...]:
    require(len(messages) <= limits.SEGMENTS_MAX, "too many segments")
    require(sum(id_count(one.packed_ids) for one in messages) <= limits.ROLLOUT_TOKENS_MAX, "too many tokens")
    return tuple(segment_from_pb(message, logprobs=logprobs) for message in messages)


def tokens_from_pb(ids: Sequence[int]) -> tuple[int, ...]:
    """Return token ids as a tuple, each checked to fit int32.

    Raises:
        MalformedMessage: one does not fit.
    """
    tokens = tuple(ids[:])  # iterating over a repeated field is slow; a slice copies it at once
    require(max(tokens, default=0) <= limits.TOKEN_ID_MAX, "a token id is out of range")
    return tokens


_ROLE_TO_PB: dict[SegmentRole, pb.SegmentRole] = {"assistant": pb.ASSISTANT, "tool": pb.TOOL, "user": pb.USER}
_ROLE_FROM_PB: dict[int, SegmentRole] = {value: role for role, value in _ROLE_TO_PB.items()}
_FINISH_TO_PB: dict[FinishReason, pb.FinishReason] = {
    "stop": pb.STOP,
    "length": pb.LENGTH,
    "interrupted": pb.INTERRUPTED,
}
_KIND_TO_PB: dict[LeaseKind, pb.LeaseKind] = {"training": pb.TRAINING, "evaluation": pb.EVALUATION}
_KIND_FROM_PB: dict[int, LeaseKind] = {value: kind for kind, value in _KIND_TO_PB.items()}
_FINISH_FROM_PB: dict[int, FinishReason] = {value: reason for reason, value in _FINISH_TO_PB.items()}
_SAMPLER = re.compile(r"[a-z0-9-]{0,24}")
_PEER_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.PEER_ID_LENGTH_MAX}}}")


def _counter(value: int) -> int:
    require(value <= limits.COUNTER_MAX, "a counter is out of range")
    return value
