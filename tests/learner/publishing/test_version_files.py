from __future__ import annotations

from pathlib import Path

import pytest

from learner.publishing.lineage import Path as Way
from learner.publishing.lineage import Step
from learner.publishing.version_files import VersionFiles
from rollcast.runtime.errors import CheckpointError
from rollcast.wire.ids import Version
from rollcast.wire.versions.records import PREVIOUS_ID
from tests.learner.publishing.chain import STATE_BYTES, Chain


def filled(folder: Path, chain: Chain) -> VersionFiles:
    files = VersionFiles(folder)
    files.write_state(Version(0), chain.states[0], number=0)
    for version, signed in enumerate(chain.signed):
        if version:
            files.write_delta(signed.version, PREVIOUS_ID, chain.deltas[version])
        files.write_announcement(signed)
    return files


def test_what_was_written_is_found(tmp_path: Path) -> None:
    chain = Chain(3)
    files = filled(tmp_path, chain)
    assert (files.versions(), files.states(), files.deltas()) == ([0, 1, 2], {0}, {1, 2})
    assert files.with_bytes() == {0, 1, 2}
    assert files.map_state(Version(0)) == chain.states[0]
    assert files.signed(Version(2)) == chain.signed[2]
    (manifest,) = chain.signed[2].deltas
    assert files.delta(Version(2), manifest) == chain.deltas[2]
    assert files.delta_bytes(Version(2)) == len(chain.deltas[2])
    assert not list(tmp_path.glob(".*")), "no temporary file is left"


def test_versions_follow_from_each_other_in_both_directions(tmp_path: Path) -> None:
    lineage = filled(tmp_path, Chain(4, whole=frozenset({3}))).lineage()
    assert lineage.path(Version(1), {Version(2)}) == Way(Version(2), (Step(Version(2), forwards=False),))
    assert lineage.path(Version(2), {Version(3)}) is None, "the delta of version 3 has no inverse"


def test_a_record_outlives_its_bytes(tmp_path: Path) -> None:
    chain = Chain(3)
    files = filled(tmp_path, chain)
    files.keep_record_only(Version(1))
    assert (files.versions(), files.signed(Version(1)), files.record(Version(1))) == ([0, 2], None, chain.signed[1])
    assert files.lineage().path(Version(2), {Version(0)}) is not None, "the delta is there"
    files.remove_bytes(Version(1), state=True, previous=True, others=True)
    assert files.lineage().path(Version(2), {Version(0)}) is None
    files.remove_records(2, {Version(1)})
    assert files.record(Version(1)) == chain.signed[1]
    files.remove_records(2, set())
    assert files.record(Version(1)) is None


def test_bytes_of_no_version_are_removed_at_the_next_start(tmp_path: Path) -> None:
    files = filled(tmp_path, Chain(3))
    files.keep_record_only(Version(1))
    (tmp_path / "000000000003.delta1").write_bytes(b"half")
    (tmp_path / "000000000004.state").write_bytes(b"half")
    (tmp_path / ".000000000005.state.0.1.tmp").write_bytes(b"half")
    files.remove_unfinished()
    assert files.with_bytes() == {0, 1, 2}
    assert not list(tmp_path.glob(".*"))


def test_damage_is_named(tmp_path: Path) -> None:
    chain = Chain(2)
    files = filled(tmp_path, chain)
    with pytest.raises(CheckpointError, match="cannot read version 1"):
        files.map_state(Version(1))
    (tmp_path / "000000000001.delta1").write_bytes(b"x" * STATE_BYTES)
    with pytest.raises(CheckpointError, match="a delta of version 1"):
        files.delta(Version(1), chain.signed[1].deltas[0])
