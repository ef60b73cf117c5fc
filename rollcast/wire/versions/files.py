"""Write and read files out of order."""

from __future__ import annotations

import errno
import os


def preallocate(descriptor: int, size_bytes: int) -> None:
    """Give a file its size, filled with zeros, and reserve the disk space where the file system can.

    A full disk is then noticed before the first byte is written.

    Raises:
        OSError: the disk is full or read-only.
    """
    os.ftruncate(descriptor, 0)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, size_bytes)  # a file system that cannot reserve


def write_all(descriptor: int, data: bytes | bytearray | memoryview, start: int) -> None:
    """Write all of ``data`` from ``start`` on.

    Raises:
        OSError: the disk refuses.
    """
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, start)
        view = view[written:]
        start += written


def read_all(descriptor: int, view: memoryview, start: int) -> None:
    """Fill ``view`` with the file's bytes from ``start`` on.

    Raises:
        OSError: the disk refuses, or the file is too short.
    """
    while view:
        count = os.preadv(descriptor, [view], start)
        if not count:
            raise OSError(errno.EIO, "the file is shorter than it was")
        view = view[count:]
        start += count
