"""Define what a joining identity signs, and which role its certificate names: for those who join and who admit."""

from __future__ import annotations

import hashlib

from rollcast.wire.ids import Role

JOIN_DOMAIN = "rollcast/join/1"


def join_payload(run_id: str, token: str, csr_pem: bytes) -> bytes:
    """Return the bytes that a joining identity signs for ``JOIN_DOMAIN``, which bind run, token and request
    together."""
    return run_id.encode("ascii") + hashlib.sha256(token.encode("ascii")).digest() + csr_pem


def certified_role(role: Role) -> Role:
    """Return the role in the certificates of those who join with an invite of this role: a cell relays as a peer."""
    return "peer" if role == "cell" else role
