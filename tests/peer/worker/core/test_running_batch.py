"""Test the rollouts of a running batch, and the generation speed that a worker reports."""

from __future__ import annotations

from dataclasses import replace

from peer.worker.core.events import SliceTokens
from peer.worker.core.running_batch import (
    PARTIAL_TOKENS_MAX,
    RunningBatch,
    finished_by_prefix,
    fits_prefixes,
    joined,
    part_of,
)
from peer.worker.core.status import FIRST_SLICE_TOKENS, RATE_WINDOW_S, GenerationSpeed
from rollcast.wire.ids import PeerId
from rollcast.wire.limits import SEGMENTS_MAX
from rollcast.wire.rollouts import Segment, observation, prefix_digest
from tests.peer.worker.core.worker_samples import SAMPLING, begun, drawn, grant, key, rollout, segment, work

OTHER = PeerId("12D3KooWother")


def running(prefix: tuple[Segment, ...] = ()) -> RunningBatch:
    return RunningBatch(1, work(grant(1, 2, prefix=prefix)), key(0), 10.0)


def test_slices_of_one_version_are_one_segment_and_the_prefix_stays_apart() -> None:
    prefix = (segment((8,), peer=OTHER), segment((9,)))
    batch = running(prefix)
    items = work(grant(1, 2, prefix=prefix))
    batch.end_slice(begun(1, items).added, 11.0)
    batch.end_slice(begun(1, items).added, 12.0)
    done, token_s = batch.end_slice((drawn(items[0], (5, 5, 5, 1), version=1),), 16.0)
    parts = (*prefix, segment((3, 4, 3, 4)), segment((5, 5, 5, 1), 1))
    assert done == [rollout(items[0], *parts, generate_s=6.0)]
    assert token_s == 1.5
    assert len(batch) == 1


def test_partial_results_have_only_new_tokens_and_their_position() -> None:
    batch = running((segment((8, 9)),))
    items = work(grant(1, 2))
    batch.end_slice(begun(1, items).added, 11.0)
    assert [(item.position, item.segments) for item in batch.partials(9)] == [(2, (segment((3, 4)),))] * 2
    assert batch.partials(9) == ()
    batch.end_slice(begun(1, items[:1], (5,)).added, 12.0)
    assert [(item.position, item.segments) for item in batch.partials(9)] == [(4, (segment((5,)),))]
    batch.report_again()
    assert [(item.position, len(item.segments[0].token_ids)) for item in batch.partials(9)] == [(2, 3), (2, 2)]


def test_the_rollout_reported_longest_ago_is_reported_first() -> None:
    batch = running()
    items = work(grant(1, 2))
    told = []
    for _ in range(3):
        batch.end_slice(begun(1, items).added, 11.0)
        told += [(item.sample_index, item.position) for item in batch.partials(1)]
    assert told == [(0, 0), (1, 0), (0, 2)]


def test_long_partial_results_are_cut() -> None:
    batch = running()
    item = work(grant(1, 2))[0]
    batch.end_slice((drawn(item, (7,) * (PARTIAL_TOKENS_MAX + 1), None),), 11.0)
    assert [(part.position, len(part.segments[0].token_ids)) for part in batch.partials(9)] == [
        (0, PARTIAL_TOKENS_MAX),
        (PARTIAL_TOKENS_MAX, 1),
    ]


def test_rollouts_without_own_tokens_are_returned_and_not_interrupted() -> None:
    batch = running((segment((8, 9)),))
    items = work(grant(1, 2, prefix=(segment((8, 9)),)))
    batch.end_slice((drawn(items[1], (3,), None),), 11.0)
    parts = (segment((8, 9)), segment((3,)))
    assert batch.interrupted(12.0) == [rollout(items[1], *parts, reason="interrupted", generate_s=2.0)]


def test_unwanted_rollouts_are_discarded() -> None:
    batch = running()
    batch.keep(lambda _, index: index == 1)
    assert (len(batch), batch.lease_ids()) == (1, {1})
    assert batch.end_slice((drawn(work(grant(1, 2))[0]),), 11.0) == ([], 1.0)


def test_a_rollout_with_all_its_segments_stays_on_its_version() -> None:
    batch = running()
    item = work(grant(1, 2))[0]
    for version in range(SEGMENTS_MAX):
        assert batch.may_renew()
        batch.end_slice((drawn(item, (3,), None, version=version),), 11.0)
    assert not batch.may_renew()


def test_a_prefix_may_be_a_whole_completion() -> None:
    def ends(tokens: tuple[int, ...]) -> str | None:
        lease = grant(1, 1, prefix=(segment(tokens),) if tokens else ())
        return finished_by_prefix(lease.slots[0], lease)

    assert [ends(()), ends((8, 9)), ends((8, 1)), ends((8,) * SAMPLING.max_new_tokens)] == [
        None,
        None,
        "stop",
        "length",
    ]


def test_prefixes_are_of_the_leases_epoch_and_young_enough() -> None:
    def fits(version: int, epoch: int) -> bool:
        parts = (segment((8,), 3, epoch=1), segment((9,), version, epoch=epoch))
        return fits_prefixes(grant(1, 2, epoch=1, oldest_useful=3, prefix=parts))

    assert [fits(3, 1), fits(2, 1), fits(3, 0)] == [True, False, False]
    assert fits_prefixes(grant(1))


def test_segments_are_joined_and_cut_with_all_that_belongs_to_their_tokens() -> None:
    parts = [segment((1, 2)), segment((3,)), segment((4,), 1), segment((5,), 1, epoch=1)]
    assert joined(parts) == [segment((1, 2, 3)), *parts[2:]]
    assert part_of(segment((1, 2, 3)), 1, 3) == segment((2, 3))
    assert part_of(parts[0], 0, 2) is parts[0]


def test_the_rate_is_of_the_last_seconds() -> None:
    speed = GenerationSpeed(slice_tokens=64, slice_s=0.5)
    speed.count(100, 0.001, 5.0)
    speed.count(50, 0.001, 9.0)
    assert speed.per_second(10.0) == 150 / RATE_WINDOW_S
    assert speed.per_second(5.1 + RATE_WINDOW_S) == 50 / RATE_WINDOW_S
    assert speed.tokens == 150


def test_slices_are_as_long_as_allowed_or_as_their_time_lets_them() -> None:
    speed = GenerationSpeed(slice_tokens=64, slice_s=0.5)
    assert speed.next_slice_tokens() == FIRST_SLICE_TOKENS
    for token_s, tokens in ((0.001, 64), (0.0625, 8), (9.0, 1)):
        speed.count(1, token_s, 0.0)
        assert speed.next_slice_tokens() == tokens


def routed(item: SliceTokens) -> SliceTokens:
    """Give each token of a slice a route of two bytes."""
    assert item.segment is not None
    routes = bytes(byte for token in item.segment.token_ids for byte in (token, 9))
    return replace(item, segment=replace(item.segment, routes=routes, context_routes=b"\7"))


def test_only_a_finished_rollout_has_routes() -> None:
    batch = running()
    ended, going = work(grant(1, 2))
    slices = (drawn(ended, (3,), None), drawn(going, (3,), None)), (drawn(ended, (4, 1)), drawn(going, (4,), None))
    assert batch.end_slice(map(routed, slices[0]), 11.0)[0] == []
    (finished,), _ = batch.end_slice(map(routed, slices[1]), 12.0)
    assert [(one.routes, one.context_routes) for one in finished.segments] == [(bytes((3, 9, 4, 9, 1, 9)), b"\7")]
    left = [*batch.partials(9), *batch.interrupted(13.0)]
    segments = [one.segments[0] for one in left]
    assert [(one.token_ids, one.routes, one.context_routes) for one in segments] == [((3, 4), b"", b"")] * 2


def test_a_segment_whose_first_tokens_have_no_routes_has_none() -> None:
    batch = running()
    item, _ = work(grant(1, 2))
    batch.end_slice([drawn(item, (3,), None)], 11.0)
    (finished,), _ = batch.end_slice([routed(drawn(item, (4, 1)))], 12.0)
    assert [(one.token_ids, one.routes) for one in finished.segments] == [((3, 4, 1), b"")]


def test_a_turn_of_an_episode_has_its_own_tokens_and_the_digest_of_what_was_before() -> None:
    prefix = (segment((8,), peer=OTHER), observation("tool", (9, 1)))
    batch = running(prefix)
    items = work(grant(1, 2, prefix=prefix))
    (done,), _ = batch.end_slice((drawn(items[0], (5, 1)),), 16.0)
    assert done.segments == (segment((5, 1)),)
    assert done.prefix_digest == prefix_digest(prefix)


def test_what_an_environment_said_ends_no_turn_and_has_no_version() -> None:
    lease = grant(1, 1, prefix=(observation("user", (9, 1)),), oldest_useful=3)
    assert fits_prefixes(lease)
    assert finished_by_prefix(lease.slots[0], lease) is None  # although its last token is a stop token
