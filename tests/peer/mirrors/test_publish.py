from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from peer.config import MirrorConfig
from peer.mirrors.publish import MirrorFolder, mirror_folder_of
from rollcast.runtime.errors import StoreError
from rollcast.wire.identity.identity import Identity
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import chunk_list
from rollcast.wire.versions.records import parse_announcement
from rollcast.wire.versions.stored_encoding import StoredEncoding
from tests.peer.versions import CHUNK_SIZE_BYTES, announcement_of, stored_version, version_record
from tests.wire.versions.build import put


class World:
    """A store, and a folder that it is published to."""

    def __init__(self, root: Path, keep_versions: int = 3) -> None:
        self.store = ChunkStore(root / "store", 8)
        self.root = root
        self.folder = root / "www"
        self.mirror = MirrorFolder(self.folder, root / "store", keep_versions)

    def stored(self, version: int) -> StoredEncoding:
        stored_version(self.store, version)
        stored = self.store.get(version)
        assert stored is not None
        return stored

    def seen(self) -> dict[str, set[str]]:
        """Return the files that a web server which hides dot files would serve."""
        versions = (path for path in self.folder.iterdir() if not path.name.startswith("."))
        return {path.name: {file.name for file in path.iterdir()} for path in versions}


WHOLE = {"0.data", "0.list", "announcement"}


def test_a_finished_encoding_is_published_in_the_stores_layout(tmp_path: Path) -> None:
    world = World(tmp_path)
    stored = world.stored(1)
    world.mirror.publish(stored)
    world.mirror.publish(stored)
    _, state = version_record(1)
    assert world.seen() == {"1": WHOLE}
    assert (world.folder / "1" / "0.data").read_bytes() == state
    assert (world.folder / "1" / "0.list").read_bytes() == stored.chunk_list()
    assert (world.folder / "1" / "0.data").samefile(tmp_path / "store" / "1" / "0.data"), "it costs no space"
    opened = ChunkStore(world.folder, 8)
    assert opened.versions() == [1], "the folder is a chunk store"
    opened.close()


def test_where_no_link_is_possible_it_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    world = World(tmp_path)
    world.mirror.publish(world.stored(1))
    assert not (world.folder / "1" / "0.data").samefile(tmp_path / "store" / "1" / "0.data")
    assert (world.folder / "1" / "0.data").read_bytes() == version_record(1)[1]


def test_a_published_version_stays_readable_when_the_store_drops_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.mirror.publish(world.stored(1))
    assert world.store.discard(parse_announcement(announcement_of(1)).version)
    assert (world.folder / "1" / "0.data").read_bytes() == version_record(1)[1]


def test_the_oldest_versions_go(tmp_path: Path) -> None:
    world = World(tmp_path, keep_versions=2)
    for version in (1, 2, 9, 10):
        world.mirror.publish(world.stored(version))
    assert world.seen() == {"9": WHOLE, "10": WHOLE}


def test_the_base_of_adapters_stays_as_long_as_they_do(tmp_path: Path) -> None:
    world = World(tmp_path, keep_versions=2)
    base = put(world.store, 0).verified
    for version in (0, 3, 5, 6):
        if version:
            put(world.store, version, base=base)
        stored = world.store.get(version)
        assert stored is not None
        world.mirror.publish(stored)
    assert world.seen() == {"0": WHOLE, "5": WHOLE, "6": WHOLE}
    world.mirror.publish(put(world.store, 7))
    world.mirror.publish(put(world.store, 8))
    assert world.seen() == {"7": WHOLE, "8": WHOLE}


def test_an_unfinished_encoding_is_not_published(tmp_path: Path) -> None:
    world = World(tmp_path)
    verified = parse_announcement(announcement_of(1))
    _, state = version_record(1)
    begun = world.store.begin(verified, verified.keyframe, chunk_list(state, CHUNK_SIZE_BYTES))
    with pytest.raises(StoreError, match="not finished"):
        world.mirror.publish(begun)
    assert world.seen() == {}


@pytest.mark.parametrize("step", range(4))
def test_a_crash_at_any_step_leaves_nothing_half_written_in_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    world = World(tmp_path)
    stored = world.stored(1)
    replace, calls = os.replace, 0

    def dies(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls > step:
            raise OSError(errno.EIO, "the power went")
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", dies)
        if step < 3:
            with pytest.raises(StoreError):
                world.mirror.publish(stored)
        else:
            world.mirror.publish(stored)
    seen = world.seen()["1"]
    assert "0.list" not in seen or "0.data" in seen, "who sees the list finds the data"
    assert "announcement" not in seen or seen == WHOLE
    again = MirrorFolder(world.folder, tmp_path / "store", 3)
    assert not list((world.folder / ".making").iterdir())
    again.publish(world.stored(2))
    assert world.seen() == ({"2": WHOLE} if step < 3 else {"1": WHOLE, "2": WHOLE})
    again.publish(stored)
    assert world.seen() == {"1": WHOLE, "2": WHOLE}


def test_a_version_of_another_run_is_replaced(tmp_path: Path) -> None:
    world = World(tmp_path)
    folder = world.folder / "1"
    folder.mkdir()
    (folder / "announcement").write_bytes(b"of another run")
    (folder / "0.list").write_bytes(b"x")
    (folder / "0.data").write_bytes(b"x")
    (folder / "7.data").write_bytes(b"x")
    world.mirror.publish(world.stored(1))
    assert world.seen() == {"1": WHOLE}
    assert (folder / "0.data").read_bytes() == version_record(1)[1]
    signed_otherwise = announcement_of(1, Identity.generate()).SerializeToString(deterministic=True)
    (folder / "announcement").write_bytes(signed_otherwise)
    world.mirror.publish(world.stored(1))
    mine = announcement_of(1).SerializeToString(deterministic=True)
    assert (folder / "announcement").read_bytes() == mine


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot keep versions in"):
        MirrorFolder(tmp_path / "file", tmp_path / "store", 3)


def test_without_a_folder_in_the_configuration_there_is_none(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path / "store", 2)
    assert mirror_folder_of(MirrorConfig(), store) is None
    assert mirror_folder_of(MirrorConfig(folder=tmp_path / "mirror"), store) is not None
    store.close()
