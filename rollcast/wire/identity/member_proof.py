"""Showing a coordinator over HTTP that one is a member of its run: the identity signs what is asked, and when.

For requests that the session cannot carry because they are about the connection itself. A proof is good for one path
and an hour or two; it goes over the coordinator's TLS, and whoever took one could ask the same thing again, no more.
"""

from __future__ import annotations

from rollcast.runtime.errors import BadSignature
from rollcast.wire.identity.identity import Identity, peer_id_of, verify_bytes
from rollcast.wire.ids import PeerId

SCHEME = "Member"
DOMAIN = "rollcast/member/1"
GOOD_FOR_S = 3600.0
"""To either side of the coordinator's clock: certificates ask the same of a machine's clock."""
_LENGTH_MAX = 256


def member_proof(identity: Identity, run_id: str, path: str, now_unix_s: float) -> dict[str, str]:
    """Headers for a request of this path: ``Authorization: Member KEY.SECONDS.SIGNATURE``, in hex."""
    seconds = int(now_unix_s)
    signature = identity.sign_bytes(DOMAIN, _payload(run_id, path, seconds))
    return {"Authorization": f"{SCHEME} {identity.public_key.hex()}.{seconds}.{signature.hex()}"}


def proved_member(text: str, run_id: str, path: str, now_unix_s: float) -> PeerId:
    """Whose proof this is; ``text`` is what follows the scheme. Whether they are a member is not looked at.

    Raises:
        BadSignature: it is no proof, or one for another path, run or time.
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
