"""Keep the batch that is being generated: the tokens of its rollouts, and which of them were reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

from peer.worker.core.events import SliceTokens, SlotWork, VersionKey
from rollcast.wire.ids import Epoch, LeaseId, Version
from rollcast.wire.limits import SEGMENTS_MAX
from rollcast.wire.rollouts import FinishReason, LeaseGrant, PartialRollout, Rollout, Segment, Slot, prefix_digest
from rollcast.wire.token_ids import ID_BYTES, last_id

PARTIAL_TOKENS_MAX = 4096  # tokens of one partial result: far below the limit of a session's message

Key = tuple[LeaseId, int]


@dataclass(slots=True)
class RunningRollout:
    """One slot being generated: its prefix, which does not change, and the tokens added here."""

    work: SlotWork
    begun_s: float
    own: list[Segment] = field(default_factory=list)  # the segments generated here, one a slice
    segment_count: int = 0  # segments so far once joined, the prefix included
    reported: int = 0  # tokens that the coordinator has, the prefix included
    tokens: int = 0  # tokens so far, the prefix included

    @property
    def may_be_continued(self) -> bool:
        """Return whether another peer may continue it: an evaluation's version may be nowhere else by then."""
        return self.work.lease.kind == "training"

    def segments(self, *, finished: bool) -> tuple[Segment, ...]:
        """Return the whole completion so far, without routes unless it is finished.

        Routes are a hundred times larger than tokens, so an attempt that continues this one gets none.
        """
        return (*self.work.slot.prefix, *self._own_joined(finished=finished))

    def _own_joined(self, *, finished: bool) -> list[Segment]:
        return joined(self.own if finished else map(without_routes, self.own))

    def rollout(self, reason: FinishReason, now: float) -> Rollout:
        """Return the completion so far as a rollout."""
        own = tuple(self._own_joined(finished=reason != "interrupted"))
        return rollout_of(self.work.lease, self.work.slot, own, reason, now - self.begun_s)

    def add(self, segment: Segment) -> None:
        """Add the tokens of a slice."""
        if not self.own or _version(self.own[-1]) != _version(segment):
            self.segment_count += 1  # counted here, because it is asked for at every slice of every rollout
        self.own.append(segment)
        self.tokens += segment.token_count

    def partials(self) -> Iterator[PartialRollout]:
        """Yield the tokens that were not reported yet, in pieces of limited size."""
        position = 0
        for segment in self.segments(finished=False):
            count = segment.token_count
            for start in range(max(0, self.reported - position), count, PARTIAL_TOKENS_MAX):
                cut = part_of(segment, start, min(count, start + PARTIAL_TOKENS_MAX))
                lease = self.work.lease
                yield PartialRollout(
                    lease.lease_id, lease.fencing_token, self.work.slot.sample_index, position + start, (cut,)
                )
            position += count


class RunningBatch:
    """Rollouts generated together, slice by slice. Those that have ended or are no longer wanted are replaced."""

    def __init__(self, batch_id: int, work: Iterable[SlotWork], key: VersionKey, now: float) -> None:
        self.batch_id = batch_id
        self.begun_s = now
        self.key = key
        self.versions_free: int | None = None
        """How many more versions its rollouts may begin with while others end; None: it has one version at a time."""
        self._rollouts: dict[Key, RunningRollout] = {}
        self.begin_slice(key, now, work)

    def __len__(self) -> int:
        return len(self._rollouts)

    def lease_ids(self) -> set[LeaseId]:
        """Return the leases that have rollouts in the batch."""
        return {lease_id for lease_id, _ in self._rollouts}

    def begin_slice(self, key: VersionKey, now: float, more: Iterable[SlotWork] = ()) -> None:
        """Note that the next slice begins, with this version, and with the slots of ``more`` added to the batch."""
        self.key, self.slice_running, self._slice_begun_s = key, True, now
        for item in more:
            known = _tokens(item.slot.prefix)
            row = RunningRollout(item, now, segment_count=len(item.slot.prefix), reported=known, tokens=known)
            self._rollouts[item.lease.lease_id, item.slot.sample_index] = row

    def end_slice(
        self, added: Iterable[SliceTokens], now: float, versions_free: int | None = None
    ) -> tuple[list[Rollout], float]:
        """Add the tokens of a slice that has ended; ``versions_free``: see the attribute.

        Returns:
            The rollouts that it finished, and the seconds that it took for each token of the longest one.
        """
        self.slice_running, self.versions_free = False, versions_free
        finished: list[Rollout] = []
        longest = 1
        for item in added:
            row = self._rollouts.get((item.lease_id, item.sample_index))
            if row is None:
                continue
            if item.segment is not None:
                row.add(item.segment)
                longest = max(longest, item.segment.token_count)
            if item.finish_reason is not None:
                finished.append(row.rollout(item.finish_reason, now))
                del self._rollouts[item.lease_id, item.sample_index]
        return finished, (now - self._slice_begun_s) / longest

    def keep(self, wanted: Callable[[LeaseId, int], bool]) -> None:
        """Discard rollouts that are not ``wanted``."""
        self._rollouts = {key: row for key, row in self._rollouts.items() if wanted(*key)}

    def may_renew(self) -> bool:
        """Return whether every rollout has room for a segment of another version."""
        return all(row.segment_count < SEGMENTS_MAX for row in self._rollouts.values())

    def interrupted(self, now: float) -> list[Rollout]:
        """Return the unfinished rollouts to which tokens were added here, and which another peer may continue."""
        return [row.rollout("interrupted", now) for row in self._rollouts.values() if row.own and row.may_be_continued]

    def partials(self, most: int) -> tuple[PartialRollout, ...]:
        """Return about ``most`` partial results, of the rollouts reported longest ago; they count as reported."""
        new: list[PartialRollout] = []
        for key, row in list(self._rollouts.items()):
            if len(new) >= most:
                break
            if row.may_be_continued:
                new += row.partials()
            row.reported = row.tokens
            self._rollouts[key] = self._rollouts.pop(key)
        return tuple(new)

    def report_again(self) -> None:
        """Report all tokens anew: a restarted coordinator may have lost earlier reports."""
        for row in self._rollouts.values():
            row.reported = _tokens(row.work.slot.prefix)


def finished_by_prefix(slot: Slot, lease: LeaseGrant) -> FinishReason | None:
    """Return how a completion ended whose last attempt was lost after its last token; None if it is not complete."""
    if not slot.prefix or not slot.prefix[-1].is_generated:
        return None
    if last_id(slot.prefix[-1].packed_ids) in lease.sampling.stop_token_ids:
        return "stop"
    return "length" if _tokens(slot.prefix) >= lease.sampling.max_new_tokens else None


def fits_prefixes(lease: LeaseGrant) -> bool:
    """Return whether all prefixes of the lease are of its epoch and new enough: epochs never mix in a rollout."""
    return all(
        segment.epoch == lease.epoch and segment.version >= lease.oldest_useful_version
        for slot in lease.slots
        for segment in slot.prefix
        if segment.is_generated
    )


def rollout_of(
    lease: LeaseGrant, slot: Slot, own: tuple[Segment, ...], reason: FinishReason, generate_s: float
) -> Rollout:
    """Return the rollout of a slot: its prefix and ``own`` segments.

    A prefix in which an environment answered stays with the coordinator: the rollout has the digest of it.
    """
    is_turn = any(not segment.is_generated for segment in slot.prefix)
    segments = own if is_turn else (*slot.prefix, *own)
    return Rollout(
        lease_id=lease.lease_id,
        fencing_token=lease.fencing_token,
        group_id=lease.group_id,
        sample_index=slot.sample_index,
        segments=segments,
        finish_reason=reason,
        generate_s=generate_s,
        prefix_digest=prefix_digest(slot.prefix) if is_turn else b"",
    )


def joined(pieces: Iterable[Segment]) -> list[Segment]:
    """Join adjacent segments of the same version."""
    runs = [list(run) for _, run in groupby(pieces, _version)]
    return [run[0] if len(run) == 1 else _one_of(run) for run in runs]


def without_routes(segment: Segment) -> Segment:
    """Return a segment without its routes."""
    return replace(segment, routes=b"", context_routes=b"") if segment.routes or segment.context_routes else segment


def part_of(segment: Segment, start: int, end: int) -> Segment:
    """Return tokens ``start`` to ``end`` of a segment without routes."""
    if (start, end) == (0, segment.token_count):
        return segment
    return replace(
        segment,
        packed_ids=segment.packed_ids[ID_BYTES * start : ID_BYTES * end],
        loss_mask=segment.loss_mask[start:end],
        reported_logprobs=segment.reported_logprobs[start:end],
    )


def _version(segment: Segment) -> tuple[Epoch, Version]:
    return segment.epoch, segment.version


def _tokens(segments: Iterable[Segment]) -> int:
    return sum(segment.token_count for segment in segments)


def _one_of(run: list[Segment]) -> Segment:
    return replace(
        run[0],
        packed_ids=b"".join(piece.packed_ids for piece in run),
        loss_mask=b"".join(piece.loss_mask for piece in run),
        reported_logprobs=tuple(logprob for piece in run for logprob in piece.reported_logprobs),
        # An engine that was asked for routes meanwhile has none of the first tokens.
        routes=b"".join(piece.routes for piece in run) if all(piece.routes for piece in run) else b"",
    )
