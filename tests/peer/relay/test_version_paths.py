from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from hypothesis import given, settings
from hypothesis import strategies as st

from peer.links.neighbours import EncodingKey
from peer.relay.version_paths import STEPS_MAX, Path, cheapest_path
from rollcast.wire.ids import EncodingId, Epoch, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.records import BaseRef, Manifest, VerifiedVersion, VersionRecord

Encodings = Mapping[int, tuple[int | None, int]]  # encoding id -> base version (None: keyframe), size


def key(version: int, encoding_id: int) -> EncodingKey:
    return EncodingKey(Version(version), EncodingId(encoding_id))


def announced(version: int, encodings: Encodings, *, base: VerifiedVersion | None = None) -> VerifiedVersion:
    named = None if base is None else BaseRef(base.version, base.record.state_hash)
    record = VersionRecord(RunId("run"), Epoch(0), Version(version), b"", b"", 1000, (), "{}", named)
    manifests = tuple(
        Manifest(
            run_id=record.run_id,
            epoch=record.epoch,
            version=record.version,
            encoding_id=EncodingId(encoding_id),
            kind="keyframe" if base is None else "delta",
            base_version=None if base is None else Version(base),
            compression="" if base is None else "zstd",
            record_hash=b"",
            size_bytes=size_bytes,
            chunk_size_bytes=1,
            chunk_count=size_bytes,
            chunk_list_hash=b"",
        )
        for encoding_id, (base, size_bytes) in encodings.items()
    )
    return VerifiedVersion(record, manifests, b"", pb.VersionAnnouncement(), base)


def run_of(versions: range) -> dict[Version, VerifiedVersion]:
    """Return versions with keyframes of 1000 bytes, deltas of 10, and deltas of 50 from eight versions before."""
    return {
        Version(version): announced(
            version, {0: (None, 1000), 1: (version - 1, 10)} | ({2: (version - 8, 50)} if version >= 8 else {})
        )
        for version in versions
    }


KNOWN = run_of(range(1, 21))
NOTHING: frozenset[EncodingKey] = frozenset()


def test_one_step_behind_takes_the_delta() -> None:
    assert cheapest_path(Version(20), KNOWN, {Version(19)}, {}, NOTHING) == Path((key(20, 1),), 10)


def test_a_held_state_needs_no_path() -> None:
    assert cheapest_path(Version(20), KNOWN, {Version(20)}, {}, NOTHING) == Path((), 0)


def test_a_peer_several_versions_behind_takes_squashed_and_single_deltas() -> None:
    path = cheapest_path(Version(20), KNOWN, {Version(10)}, {}, NOTHING)
    assert path is not None
    assert path.bytes_to_receive == 70
    assert sorted(one.encoding_id for one in path.keys) == [1, 1, 2]
    assert [one.version for one in path.keys] == sorted(one.version for one in path.keys)


def test_a_joiner_takes_the_keyframe_or_finishes_an_older_one() -> None:
    assert cheapest_path(Version(20), KNOWN, set(), {}, NOTHING) == Path((key(20, 0),), 1000)
    under_way = {key(18, 0): 300}
    expected = Path((key(18, 0), key(19, 1), key(20, 1)), 320)
    assert cheapest_path(Version(20), KNOWN, set(), under_way, NOTHING) == expected


def test_failed_encodings_are_not_used_again() -> None:
    without_delta = cheapest_path(Version(20), KNOWN, {Version(19)}, {}, {key(20, 1)})
    assert without_delta is not None
    assert key(20, 1) not in without_delta.keys
    both = {key(20, 1), key(20, 2)}
    assert cheapest_path(Version(20), KNOWN, {Version(19)}, {}, both) == Path((key(20, 0),), 1000)
    assert cheapest_path(Version(20), KNOWN, {Version(19)}, {}, {*both, key(20, 0)}) is None


def test_there_is_no_path_to_an_unknown_version() -> None:
    assert cheapest_path(Version(21), KNOWN, {Version(20)}, {}, NOTHING) is None


def test_chains_are_bounded() -> None:
    known = run_of(range(1, STEPS_MAX + 2))
    deltas = {key(version, 2) for version in known}
    path = cheapest_path(Version(STEPS_MAX + 1), known, {Version(0)}, {}, deltas)
    assert path == Path((key(STEPS_MAX + 1, 0),), 1000)
    path = cheapest_path(Version(STEPS_MAX), known, {Version(0)}, {}, deltas)
    assert path is not None
    assert len(path.keys) == STEPS_MAX


def every_path(
    target: int,
    known: Mapping[Version, VerifiedVersion],
    states: Set[Version],
    missing: Mapping[EncodingKey, int],
    failed: Set[EncodingKey],
) -> Iterator[Path]:
    if target in states:
        yield Path((), 0)
    for manifest in known[Version(target)].manifests if target in known else ():
        here = key(target, manifest.encoding_id)
        if here in failed:
            continue
        cost = missing.get(here, manifest.size_bytes)
        if manifest.base_version is None:
            yield Path((here,), cost)
        else:
            for before in every_path(manifest.base_version, known, states, missing, failed):
                yield Path((*before.keys, here), before.bytes_to_receive + cost)


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[Version, VerifiedVersion], set[Version], dict[EncodingKey, int], set]:
    versions = draw(st.sets(st.integers(0, 7), max_size=8))
    known = {}
    for version in versions:
        bases = draw(st.sets(st.integers(0, version - 1), max_size=3)) if version else set()
        sizes = [draw(st.integers(1, 40)) for _ in bases]
        deltas = {number: (base, size) for number, (base, size) in enumerate(zip(bases, sizes, strict=True), 1)}
        known[Version(version)] = announced(version, {0: (None, draw(st.integers(1, 100)))} | deltas)
    keys = [key(version, one.encoding_id) for version, verified in known.items() for one in verified.manifests]
    some = st.sets(st.sampled_from(keys)) if keys else st.just(set())
    missing = {one: draw(st.integers(0, 20)) for one in sorted(draw(some))}
    states = draw(st.sets(st.integers(0, 7).map(Version), max_size=3))
    return known, states, missing, draw(some)


@settings(deadline=None, max_examples=60)
@given(situations(), st.integers(0, 7))
def test_no_other_path_is_cheaper(situation: tuple, target: int) -> None:
    known, states, missing, failed = situation
    best = min(
        every_path(target, known, states, missing, failed),
        key=lambda path: (path.bytes_to_receive, len(path.keys)),
        default=None,
    )
    found = cheapest_path(Version(target), known, states, missing, failed)
    if best is None or found is None:
        assert found is best
        return
    if target not in states:
        assert (found.bytes_to_receive, len(found.keys)) == (best.bytes_to_receive, len(best.keys))
    assert not failed & set(found.keys)
