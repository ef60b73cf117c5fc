"""The batch being generated: what each of its rollouts has so far, and what the coordinator knows of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from peer.worker.events import DrawnTokens, SlotWork, VersionKey
from rollcast.wire.ids import LeaseId
from rollcast.wire.limits import SEGMENTS_MAX
from rollcast.wire.rollouts import FinishReason, LeaseGrant, PartialRollout, Rollout, Segment, Slot

PARTIAL_TOKENS_MAX = 4096  # tokens of one partial result: far below the bound of a session's message

Key = tuple[LeaseId, int]


@dataclass(slots=True)
class RunningRollout:
    """One slot: its prefix, which stays as it is, and our tokens as they come."""

    work: SlotWork
    begun_s: float
    own: list[Segment] = field(default_factory=list)  # one a slice
    told: int = 0  # tokens that the coordinator has, the prefix included
    tokens: int = 0  # so far, the prefix included

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The whole completion so far."""
        return (*self.work.slot.prefix, *joined(self.own))

    def rollout(self, reason: FinishReason, now: float) -> Rollout:
        """The completion so far as a rollout."""
        return rollout_of(self.work.lease, self.work.slot, self.segments, reason, now - self.begun_s)

    def partials(self) -> Iterator[PartialRollout]:
        """What the coordinator has not been told yet, cut to size."""
        position = 0
        for segment in self.segments:
            count = len(segment.token_ids)
            for start in range(max(0, self.told - position), count, PARTIAL_TOKENS_MAX):
                cut = part_of(segment, start, min(count, start + PARTIAL_TOKENS_MAX))
                lease = self.work.lease
                yield PartialRollout(
                    lease.lease_id, lease.fencing_token, self.work.slot.sample_index, position + start, (cut,)
                )
            position += count


class RunningBatch:
    """Rollouts drawn together, slice by slice. What has ended or is of no use any more makes room for others."""

    def __init__(self, batch_id: int, work: Iterable[SlotWork], key: VersionKey, now: float) -> None:
        self.batch_id = batch_id
        self.begun_s = now
        self.key = key
        self._rollouts: dict[Key, RunningRollout] = {}
        self.begin_slice(key, now, work)

    def __len__(self) -> int:
        return len(self._rollouts)

    def lease_ids(self) -> set[LeaseId]:
        """Leases that have rollouts here."""
        return {lease_id for lease_id, _ in self._rollouts}

    def begin_slice(self, key: VersionKey, now: float, more: Iterable[SlotWork] = ()) -> None:
        """The next slice is drawn from now on, with this version, and with ``more`` beside what there is."""
        self.key, self.slice_running, self._slice_begun_s = key, True, now
        for item in more:
            known = _tokens(item.slot.prefix)
            row = RunningRollout(item, now, told=known, tokens=known)
            self._rollouts[item.lease.lease_id, item.slot.sample_index] = row

    def take_in(self, drawn: Iterable[DrawnTokens], now: float) -> tuple[list[Rollout], float]:
        """A slice has ended.

        Returns:
            the rollouts that it finished, and the seconds it took for each token of the longest.
        """
        self.slice_running = False
        finished: list[Rollout] = []
        longest = 1
        for item in drawn:
            row = self._rollouts.get((item.lease_id, item.sample_index))
            if row is None:
                continue
            if item.segment is not None:
                row.own.append(item.segment)
                row.tokens += len(item.segment.token_ids)
                longest = max(longest, len(item.segment.token_ids))
            if item.finish_reason is not None:
                finished.append(row.rollout(item.finish_reason, now))
                del self._rollouts[item.lease_id, item.sample_index]
        return finished, (now - self._slice_begun_s) / longest

    def keep(self, wanted: Callable[[LeaseId, int], bool]) -> None:
        """Forget rollouts that are not ``wanted``."""
        self._rollouts = {key: row for key, row in self._rollouts.items() if wanted(*key)}

    def may_renew(self) -> bool:
        """Whether every rollout has room for another segment."""
        return all(len(row.segments) < SEGMENTS_MAX for row in self._rollouts.values())

    def interrupted(self, now: float) -> list[Rollout]:
        """Rollouts that have tokens of ours, as far as they are."""
        return [row.rollout("interrupted", now) for row in self._rollouts.values() if row.own]

    def partials(self, most: int) -> tuple[PartialRollout, ...]:
        """What the coordinator has not been told; it counts as told from now on.

        About ``most`` partial results, of the rollouts that were told of longest ago.
        """
        new: list[PartialRollout] = []
        for key, row in list(self._rollouts.items()):
            if len(new) >= most:
                break
            new += row.partials()
            row.told = row.tokens
            self._rollouts[key] = self._rollouts.pop(key)
        return tuple(new)

    def tell_again(self) -> None:
        """The coordinator may have forgotten what we drew."""
        for row in self._rollouts.values():
            row.told = _tokens(row.work.slot.prefix)


def finished_by_prefix(slot: Slot, lease: LeaseGrant) -> FinishReason | None:
    """How a completion whose last attempt was lost just before its end has ended; None: there is more to draw."""
    if not slot.prefix:
        return None
    if slot.prefix[-1].token_ids[-1] in lease.sampling.stop_token_ids:
        return "stop"
    return "length" if _tokens(slot.prefix) >= lease.sampling.max_new_tokens else None


def fits_prefixes(lease: LeaseGrant) -> bool:
    """Whether all that was drawn for the lease's slots is of its epoch and young enough: epochs never mix."""
    return all(
        segment.epoch == lease.epoch and segment.version >= lease.oldest_useful_version
        for slot in lease.slots
        for segment in slot.prefix
    )


def rollout_of(
    lease: LeaseGrant, slot: Slot, segments: tuple[Segment, ...], reason: FinishReason, generate_s: float
) -> Rollout:
    """The rollout of a slot."""
    return Rollout(
        lease_id=lease.lease_id,
        fencing_token=lease.fencing_token,
        group_id=lease.group_id,
        sample_index=slot.sample_index,
        segments=segments,
        finish_reason=reason,
        generate_s=generate_s,
    )


def joined(pieces: Iterable[Segment]) -> list[Segment]:
    """Neighbours of one version as one segment."""
    runs: list[list[Segment]] = []
    for piece in pieces:
        if runs and (runs[-1][0].epoch, runs[-1][0].version) == (piece.epoch, piece.version):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return [run[0] if len(run) == 1 else _one_of(run) for run in runs]


def part_of(segment: Segment, start: int, end: int) -> Segment:
    """Tokens ``start`` to ``end`` of a segment."""
    if (start, end) == (0, len(segment.token_ids)):
        return segment
    return replace(
        segment,
        token_ids=segment.token_ids[start:end],
        loss_mask=segment.loss_mask[start:end],
        reported_logprobs=segment.reported_logprobs[start:end],
    )


def _tokens(segments: Iterable[Segment]) -> int:
    return sum(len(segment.token_ids) for segment in segments)


def _one_of(run: list[Segment]) -> Segment:
    return replace(
        run[0],
        token_ids=tuple(token for piece in run for token in piece.token_ids),
        loss_mask=b"".join(piece.loss_mask for piece in run),
        reported_logprobs=tuple(logprob for piece in run for logprob in piece.reported_logprobs),
    )
