"""Prove to a coordinator over HTTP that a request comes from a member: the identity signs the path and the time.

It serves requests that the session cannot carry because they are about the connection itself. A proof is valid for one
path and for an hour or two. It travels over the coordinator's TLS; a stolen proof could only repeat the same request.
"""

from __future__ import annotations

from rollcast.runtime.errors import BadSignature
from rollcast.wire.identity.identity import Identity, peer_id_of, verify_bytes
from rollcast.wire.ids import PeerId

SCHEME = "Member"
DOMAIN = "rollcast/member/1"
GOOD_FOR_S = 3600.0
"""Largest difference of a proof's time from the coordinator's clock, in seconds; certificates allow the same."""
_LENGTH_MAX = 256


def member_proof(identity: Identity, run_id: str, path: str, now_unix_s: float) -> dict[str, str]:
    """Return the headers for a request of this path: ``Authorization: Member KEY.SECONDS.SIGNATURE``, in hex."""
    seconds = int(now_unix_s)
    signature = identity.sign_bytes(DOMAIN, _payload(run_id, path, seconds))
    return {"Authorization": f"{SCHEME} {identity.public_key.hex()}.{seconds}.{signature.hex()}"}


def proved_member(text: str, run_id: str, path: str, now_unix_s: float) -> PeerId:
    """Verify a proof and return the peer that made it; the caller must check that the peer is a member.

    Args:
        text: the part of the header after the scheme.

    Raises:
        BadSignature: the text is no proof, or a proof for another path, run or time.
    """
    key, seconds, signature = _parts(text)
    if abs(now_unix_s - seconds) > GOOD_FOR_S:
        raise BadSignature("this proof of membership is too old", fix="set this machine's clock")
    verify_bytes(key, DOMAIN, _payload(run_id, path, seconds), signature)
    return peer_id_of(key)


def _parts(text: str) -> tuple[bytes, int, bytes]:
    pieces = text.split(".")
    try:
        if len(text) > _LENGTH_MAX or len(pieces) != 3 or not pieces[1].isdecimal():
            raise ValueError
        key, signature = bytes.fromhex(pieces[0]), bytes.fromhex(pieces[2])
        if len(key) != 32 or len(signature) != 64:
            raise ValueError
        return key, int(pieces[1]), signature
    except ValueError:
        raise BadSignature("this is no proof of membership", fix="run the same release on both ends") from None


def _payload(run_id: str, path: str, seconds: int) -> bytes:
    return f"{run_id}\n{path}\n{seconds}".encode()
