"""Under which key the members of one run say in their table where they can be reached (peer.p2p.circuits.dht). Pure."""

from __future__ import annotations

import hashlib

from rollcast.wire.ids import PeerId

_SHA2_256 = b"\x12\x20"  # multihash: the function's code, and 32 bytes

Found = tuple[tuple[PeerId, tuple[str, ...]], ...]
"""Who says that they can be reached, and at which libp2p addresses."""


def run_key(run_id: str, ca_pem: bytes) -> bytes:
    """The multihash of a run's name and its CA."""
    return _SHA2_256 + hashlib.sha256(b"rollcast/dht/1" + run_id.encode() + ca_pem).digest()
