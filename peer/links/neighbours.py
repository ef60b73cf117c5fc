"""Name the processes that a peer is linked with, and the unit that links carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rollcast.wire.ids import EncodingId, PeerId, Version


class EncodingKey(NamedTuple):
    """One encoding of one version: the unit that is received and served.

    It is a tuple because dozens of look-ups are made with it for each chunk, and a dataclass is hashed in Python.
    """

    version: Version
    encoding_id: EncodingId


MIRROR_ROLE = "mirror"
DISK_ROLE = "disk"
"""A file on this machine that holds what a mirror would."""
MIRROR_ROLES = (MIRROR_ROLE, DISK_ROLE)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process in this peer's part of the relay plan."""

    peer_id: PeerId
    role: str  # peer, origin, mirror or disk
    address: str  # host:port, https://... of a mirror, a path on this disk; empty where it cannot be dialled
    we_dial: bool
    lan: bool = False
