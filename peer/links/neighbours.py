"""Name the processes that a peer is linked with, and the unit that links carry."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.wire.ids import EncodingId, PeerId, Version


@dataclass(frozen=True, slots=True, order=True)
class EncodingKey:
    """One encoding of one version: the unit that is received and served."""

    version: Version
    encoding_id: EncodingId


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process in this peer's part of the relay plan."""

    peer_id: PeerId
    role: str  # peer, origin or mirror
    address: str  # host:port, https://... of a mirror; empty where it cannot be dialled
    we_dial: bool
    lan: bool = False
