"""Keep the tokens that running attempts have generated, so that a lost one can be continued; in memory, bounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from coordinator.core.leases.attempts import Attempt, AttemptKey, Prefix
from rollcast.wire.ids import Epoch, GroupId, PeerId, Version
from rollcast.wire.limits import SEGMENTS_MAX
from rollcast.wire.rollouts import Segment, tokens_of
from rollcast.wire.token_ids import ID_BYTES

_SlotKey = tuple[GroupId, int]
_ATTEMPTS_KEPT = 3  # attempts of a slot, those with the most tokens; two of them may be live
_SEGMENTS_KEPT = SEGMENTS_MAX // 4  # in a prefix: the peer that continues it needs room for segments of its own


def bare(segments: Iterable[Segment]) -> Prefix:
    """Return the segments without reported log-probabilities, which are evidence about one attempt, not part of it."""
    return tuple(replace(one, reported_logprobs=()) if one.reported_logprobs else one for one in segments)


def cut(prefix: Prefix, tokens: int) -> Prefix:
    """Return the first so many tokens of a prefix."""
    kept: list[Segment] = []
    for segment in prefix:
        if tokens <= 0:
            break
        part = segment
        if segment.token_count > tokens:
            first = segment.packed_ids[: ID_BYTES * tokens]
            part = replace(segment, packed_ids=first, loss_mask=segment.loss_mask[:tokens])
        kept.append(part)
        tokens -= part.token_count
    return tuple(kept)


def joined(prefix: Prefix, more: Prefix) -> Prefix:
    """Join two prefixes. What one peer generated with one version becomes one segment."""
    result = list(prefix)
    for segment in more:
        last = result[-1] if result else None
        if last is not None and _kind(last) == _kind(segment):
            packed, mask = last.packed_ids + segment.packed_ids, last.loss_mask + segment.loss_mask
            result[-1] = replace(last, packed_ids=packed, loss_mask=mask)
        else:
            result.append(segment)
    return tuple(result)


def _kind(segment: Segment) -> tuple[object, ...]:
    return (segment.role, segment.epoch, segment.version, segment.peer_id, segment.sampler)


@dataclass(slots=True)
class _Progress:
    """Progress of one attempt: the tokens with which it began, and those that it generated."""

    peer_id: PeerId
    given: Prefix
    own: Prefix

    @property
    def whole(self) -> Prefix:
        return self.given + self.own

    @property
    def tokens(self) -> int:
        return tokens_of(self.own)


@dataclass(slots=True)
class _Share:
    """The progress kept of one peer's attempts; the one that was unchanged for longest is first."""

    tokens: int = 0
    slots: dict[AttemptKey, _SlotKey] = field(default_factory=dict)


class Partials:
    """Keeps the progress of attempts at unfilled slots, whether or not they are still live.

    When memory is full, new tokens of a peer that has its share of the memory replace older ones of the same peer; else
    they replace those of the peer that has most. So no peer can evict more than others hold beyond their share.
    """

    def __init__(self, tokens_max: int) -> None:
        self._tokens_max = tokens_max
        self.slots: dict[_SlotKey, dict[AttemptKey, _Progress]] = {}
        """The progress at each slot; most slots have no entry."""
        self._by_peer: dict[PeerId, _Share] = {}
        self.tokens = 0  # generated tokens that are kept

    def add(self, attempt: Attempt, position: int, segments: Prefix) -> bool:
        """Keep tokens that the attempt generated after its first ``position`` ones.

        Returns False if they do not continue the known tokens, or have more segments than a prefix may have.
        """
        given = attempt.prefix or ()
        before = self.slots.get((attempt.group_id, attempt.sample_index), {}).get(attempt.key)
        own = () if before is None else before.own
        generated = position - tokens_of(given)
        if not 0 <= generated <= tokens_of(own):
            return False
        progress = _Progress(attempt.peer_id, given, joined(cut(own, generated), segments))
        if len(progress.whole) > _SEGMENTS_KEPT:
            return False
        self._keep(attempt, progress)
        return True

    def _keep(self, attempt: Attempt, progress: _Progress) -> None:
        slot = (attempt.group_id, attempt.sample_index)
        if attempt.key in self.slots.get(slot, {}):
            self._discard_attempt(slot, attempt.key)
        attempts = self.slots.setdefault(slot, {})
        if len(attempts) >= _ATTEMPTS_KEPT:
            self._discard_attempt(slot, min(attempts, key=lambda key: tokens_of(attempts[key].whole)))
        attempts[attempt.key] = progress
        share = self._by_peer.setdefault(attempt.peer_id, _Share())
        share.slots[attempt.key] = slot
        share.tokens += progress.tokens
        self.tokens += progress.tokens
        while self.tokens > self._tokens_max:
            self._make_room(attempt.peer_id)

    def _make_room(self, for_peer: PeerId) -> None:
        """Discard the progress of one peer that was unchanged for longest."""
        share = self._by_peer.get(for_peer)
        if share is None or share.tokens * len(self._by_peer) < self._tokens_max:
            share = max(self._by_peer.values(), key=lambda one: one.tokens)
        key, slot = next(iter(share.slots.items()))
        self._discard_attempt(slot, key)

    def filled(self, group_id: GroupId, sample_index: int) -> None:
        """Discard the progress at a slot that has its rollout, or whose group was removed."""
        slot = (group_id, sample_index)
        for key in list(self.slots.get(slot, ())):
            self._discard_attempt(slot, key)

    def discard(self, peer_id: PeerId) -> None:
        """Discard all progress that contains tokens of this peer, because it is not trusted any more."""
        for slot, attempts in list(self.slots.items()):
            for key, one in list(attempts.items()):
                if any(part.peer_id == peer_id for part in one.whole):
                    self._discard_attempt(slot, key)

    def doubt(self, peer_id: PeerId) -> None:
        """Discard the progress of this peer's attempts, after it sent something malformed.

        A peer that continued from there would be blamed for it. Tokens of this peer that other attempts already
        continue are kept: those attempts began with them, and must repeat them.
        """
        share = self._by_peer.get(peer_id)
        for key, slot in [] if share is None else list(share.slots.items()):
            self._discard_attempt(slot, key)

    def _discard_attempt(self, slot: _SlotKey, key: AttemptKey) -> None:
        attempts = self.slots[slot]
        progress = attempts.pop(key)
        if not attempts:
            del self.slots[slot]
        share = self._by_peer[progress.peer_id]
        del share.slots[key]
        share.tokens -= progress.tokens
        if not share.slots:
            del self._by_peer[progress.peer_id]
        self.tokens -= progress.tokens

    def prefixes(
        self, group_id: GroupId, indices: Iterable[int], oldest_useful: Version, epoch: Epoch
    ) -> dict[int, Prefix]:
        """Return the longest prefix of each of these slots, of this epoch and of versions that are young enough.

        Slots without a prefix are left out.
        """
        found: dict[int, Prefix] = {}
        for index in indices:
            known = [progress.whole for progress in self.slots.get((group_id, index), {}).values()]
            useful = [
                prefix
                for prefix in known
                if all(one.epoch == epoch and one.version >= oldest_useful for one in prefix if one.is_generated)
            ]
            if useful:
                found[index] = max(useful, key=tokens_of)
        return found

    def validate(self) -> None:
        """Raise AssertionError when the bound is broken (I8)."""
        counted = sum(progress.tokens for attempts in self.slots.values() for progress in attempts.values())
        assert self.tokens == counted, "tokens of partial results"
        assert self.tokens == sum(share.tokens for share in self._by_peer.values()), "tokens of peers"
        known = {key for attempts in self.slots.values() for key in attempts}
        assert known == {key for share in self._by_peer.values() for key in share.slots}, "partial results of peers"
        assert self.tokens <= self._tokens_max, "I8: partial results are not bounded"
