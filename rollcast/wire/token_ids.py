"""Token ids as bytes: little-endian uint32, as segments hold them on the wire, in the ledger, and in between.

Thousands of Python integers a rollout would cost a coordinator more than everything else that it does with one. This
module is pure.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

ID_BYTES = 4
_SHORT_BYTES = 64 * ID_BYTES  # up to which Python's integers take less time than a call of numpy
_ID_MAX = (1 << 8 * ID_BYTES) - 1


def pack_ids(ids: Iterable[int]) -> bytes:
    """Return ids as bytes.

    Raises:
        OverflowError: an id does not fit uint32.
    """
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    """Return the ids that these bytes hold.

    Raises:
        ValueError: the number of bytes is no multiple of ID_BYTES.
    """
    ids = array("I")
    ids.frombytes(packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return tuple(ids)


def id_array(packed: bytes) -> npt.NDArray[np.uint32]:
    """Return a read-only view of the ids, (tokens,)."""
    return np.frombuffer(packed, "<u4")


def id_count(packed: bytes) -> int:
    """Return the number of ids."""
    return len(packed) // ID_BYTES


def largest_id(packed: bytes) -> int:
    """Return the largest id; -1 if there is none."""
    if len(packed) <= _SHORT_BYTES:
        return max(unpack_ids(packed), default=-1)
    return int(np.maximum.reduce(id_array(packed)))


def last_id(packed: bytes) -> int:
    """Return the last id; there must be one."""
    return int.from_bytes(packed[-ID_BYTES:], "little")


def holds_any(packed: bytes, wanted: Collection[int]) -> bool:
    """Whether any of the wanted ids occurs."""
    return any(_holds(packed, one) for one in wanted if 0 <= one <= _ID_MAX)


def _holds(packed: bytes, wanted: int) -> bool:
    if len(packed) > _SHORT_BYTES:  # which the search for bytes would compare at nearly every place
        return bool((id_array(packed) == wanted).any())
    pattern = wanted.to_bytes(ID_BYTES, "little")
    place = packed.find(pattern)
    while place % ID_BYTES and place >= 0:  # it spans two ids
        place = packed.find(pattern, place + 1)
    return place >= 0
