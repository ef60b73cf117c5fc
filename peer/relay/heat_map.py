"""The chunk heat map of a heartbeat: how much of each part of an encoding is here."""

from __future__ import annotations

import numpy as np

from rollcast.wire.limits import HEAT_MAP_CELLS_MAX


def heat_map(bitmap: bytes, chunk_count: int, cells: int = HEAT_MAP_CELLS_MAX) -> bytes:
    """Share held of each of ``cells`` equal runs of chunks, 0 to 255 each; fewer cells where there are fewer chunks.

    A cell is 255 only where all of its chunks are held, and 0 only where none is.

    Args:
        bitmap: most significant bit first, chunk 0 first, at least ``chunk_count`` bits; see
        rollcast/wire/versions/chunks.py.
    """
    cells = min(cells, chunk_count)
    if cells <= 0:
        return b""
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=chunk_count)
    starts = np.arange(cells + 1, dtype=np.int64) * chunk_count // cells
    held, sizes = np.add.reduceat(bits, starts[:-1], dtype=np.int64), np.diff(starts)
    shares = np.where(held == sizes, 255, np.where(held == 0, 0, np.clip(held * 255 // sizes, 1, 254)))
    return shares.astype(np.uint8).tobytes()
