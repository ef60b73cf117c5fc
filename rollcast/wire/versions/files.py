"""Write and read files out of order."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from rollcast.wire.versions.chunks import BytesLike

View = TypeVar("View", bound=BytesLike)

_VECTOR_MOST = 512  # buffers of one call; the system's own limit (IOV_MAX) is 1024


def preallocate(descriptor: int, size_bytes: int) -> None:
    """Give a file its size, filled with zeros, and reserve the disk space where the file system can.

    A full disk is then noticed before the first byte is written.

    Raises:
        OSError: the disk is full or read-only.
    """
    os.ftruncate(descriptor, 0)
    extend(descriptor, size_bytes)


def extend(descriptor: int, size_bytes: int) -> None:
    """Give a file its size as ``preallocate`` does, and keep the bytes that it has up to there.

    Raises:
        OSError: the disk is full or read-only.
    """
    if os.fstat(descriptor).st_size > size_bytes:
        os.ftruncate(descriptor, size_bytes)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, size_bytes)  # a file system that cannot reserve


def write_all(descriptor: int, data: BytesLike, start: int) -> None:
    """Write all of ``data`` from ``start`` on.

    Raises:
        OSError: the disk refuses.
    """
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, start)
        view = view[written:]
        start += written


def write_vector(descriptor: int, views: Sequence[BytesLike], start: int) -> None:
    """Write several views to consecutive bytes of a file, in one call of the system where it can.

    Raises:
        OSError: the disk refuses.
    """
    _in_vectors(os.pwritev, write_all, descriptor, views, start)


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


def read_vector(descriptor: int, views: Sequence[memoryview], start: int) -> None:
    """Fill several views with consecutive bytes of a file, in one call of the system where it can.

    Raises:
        OSError: the disk refuses, or the file is too short.
    """
    _in_vectors(os.preadv, read_all, descriptor, views, start)


def _in_vectors(
    vector: Callable[[int, Sequence[View], int], int],
    single: Callable[[int, View, int], None],
    descriptor: int,
    views: Sequence[View],
    start: int,
) -> None:
    """Move consecutive bytes in calls of ``vector``; what one of them leaves undone is moved view by view."""
    for first in range(0, len(views), _VECTOR_MOST):
        some = views[first : first + _VECTOR_MOST]
        wanted = sum(map(len, some))
        if vector(descriptor, some, start) != wanted:
            at = start
            for view in some:  # after a short call the next ones say why
                single(descriptor, view, at)
                at += len(view)
        start += wanted
