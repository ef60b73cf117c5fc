"""Compute the key under which the members of one run publish their addresses (peer.p2p.circuits.dht). Pure."""

from __future__ import annotations

import hashlib

from rollcast.wire.ids import PeerId

_SHA2_256 = b"\x12\x20"  # multihash: the function's code, and 32 bytes

Found = tuple[tuple[PeerId, tuple[str, ...]], ...]
"""Members that announce that they can be reached, each with its libp2p addresses."""


def run_key(run_id: str, ca_pem: bytes) -> bytes:
    """Return the key of a run: the multihash of its id and its CA."""
    return _SHA2_256 + hashlib.sha256(b"rollcast/dht/1" + run_id.encode() + ca_pem).digest()
