from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rollcast.wire.versions.files import extend, preallocate, read_all, read_vector, write_all, write_vector


def test_a_file_gets_its_size_and_takes_bytes_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv, pwrite = os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda file, views, at: preadv(file, [views[0][:3]], at))
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:2], at))
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"rubbish")
        file.flush()
        preallocate(file.fileno(), 20)
        write_all(file.fileno(), b"0123456789", 5)
        view = memoryview(bytearray(20))
        read_all(file.fileno(), view, 0)
        assert bytes(view) == bytes(5) + b"0123456789" + bytes(5)
        with pytest.raises(OSError, match="shorter"):
            read_all(file.fileno(), view, 1)


def test_only_a_file_system_that_cannot_reserve_is_excused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("w+b") as file:
        for code in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC):

            def refuse(*_: object, code: int = code) -> None:
                raise OSError(code, os.strerror(code))

            monkeypatch.setattr(os, "posix_fallocate", refuse)
            if code == errno.ENOSPC:
                with pytest.raises(OSError, match="No space"):
                    preallocate(file.fileno(), 20)
            else:
                preallocate(file.fileno(), 20)
                assert os.fstat(file.fileno()).st_size == 20


def test_a_vector_is_whole_although_the_system_stops_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.preadv, os.pwritev
    parts = [b"one", b"", b"three", b"four"]
    monkeypatch.setattr(os, "pwritev", lambda descriptor, views, start: write(descriptor, views[:2], start))
    monkeypatch.setattr(os, "preadv", lambda descriptor, views, start: read(descriptor, views[:1], start))
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        write_vector(descriptor, parts, 5)
        views = [memoryview(bytearray(len(part))) for part in parts]
        read_vector(descriptor, views, 5)
        assert [bytes(view) for view in views] == parts
        with pytest.raises(OSError, match="shorter"):
            read_vector(descriptor, views, 6)
    finally:
        os.close(descriptor)


def test_a_file_that_is_extended_keeps_its_bytes(tmp_path: Path) -> None:
    for before, size_bytes in ((b"0123456789", 15), (b"0123456789", 4)):
        path = tmp_path / str(size_bytes)
        path.write_bytes(before)
        with path.open("r+b") as file:
            extend(file.fileno(), size_bytes)
        assert path.read_bytes() == (before + bytes(15))[:size_bytes]
