"""Name the processes that a peer is linked with, and the unit that links carry."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.wire.ids import EncodingId, PeerId, Version


@dataclass(frozen=True, slots=True, order=True)
class EncodingKey:
    """One encoding of one version: the unit that is received and served."""

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
