"""Define identities: Ed25519 keys, the peer ids derived from them, and signatures bound to a purpose.

A signature covers ``domain || 0x00 || payload``, so that a signature for one purpose is invalid for every other.
"""

from __future__ import annotations

from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from rollcast.runtime.errors import BadSignature, WrongKey
from rollcast.runtime.run_folder import run_folder_error, write_atomically
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

PUBLIC_KEY_BYTES = 32
_KEY_FILE_BYTES_MAX = 4096

# libp2p's PeerId of an Ed25519 key: identity multihash (00, length 36) of the protobuf {type: 1, data: 32 bytes}
# https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md
_PEER_ID_PREFIX = bytes.fromhex("002408011220")


class Identity:
    """An Ed25519 key pair."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self.public_key: bytes = private_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.peer_id: PeerId = peer_id_of(self.public_key)

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"

    @classmethod
    def generate(cls) -> Identity:
        """Return an identity with a new random key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read a key file.

        Raises:
            WrongKey: the file does not exist, is open to other users, or holds no Ed25519 key.
        """
        try:
            mode = path.stat().st_mode
            with path.open("rb") as file:
                data = file.read(_KEY_FILE_BYTES_MAX)
        except OSError as error:
            raise WrongKey(
                f"cannot read the identity {path}", cause=str(error), fix="`rollcast identity FILE` makes one"
            ) from None
        if mode & 0o077:
            raise WrongKey(f"the identity {path} is open to other users", fix=f"chmod 600 {path}")
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError) as error:
            raise WrongKey(f"{path} holds no key", cause=str(error)) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise WrongKey(f"{path} holds a key of another kind", fix="`rollcast identity FILE` makes an Ed25519 key")
        return cls(key)

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """Read a key file, or create it (mode 0600) if it does not exist.

        Raises:
            WrongKey: see ``load``.
            RunFolderError: the file cannot be written.
        """
        if path.exists():
            return cls.load(path)
        identity = cls.generate()
        pem = identity._private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, pem, mode=0o600)
        except OSError as error:
            raise run_folder_error(path.parent, error) from None
        return identity

    def seed(self) -> bytes:
        """Return the private key (32 bytes), for a component with a handshake of its own. Never log or send it."""
        return self._private_key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())

    def sign_bytes(self, domain: str, payload: bytes) -> bytes:
        """Return the signature (64 bytes) of ``payload`` for the purpose ``domain``."""
        return self._private_key.sign(_message(domain, payload))

    def sign(self, domain: str, payload: bytes) -> pb.Signed:
        """Return ``payload`` with its signature and this identity's public key."""
        return pb.Signed(payload=payload, signature=self.sign_bytes(domain, payload), public_key=self.public_key)


def peer_id_of(public_key: bytes) -> PeerId:
    """Return the peer id of an Ed25519 public key in libp2p's form: 52 characters, ``12D3KooW...``.

    Raises:
        WrongKey: the key has not 32 bytes.
    """
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise WrongKey(f"an Ed25519 public key has {PUBLIC_KEY_BYTES} bytes, not {len(public_key)}")
    return PeerId(base58.b58encode(_PEER_ID_PREFIX + public_key).decode("ascii"))


def public_key_of(peer_id: str) -> bytes:
    """Return the Ed25519 public key (32 bytes) that a peer id encodes.

    Raises:
        WrongKey: the text is no peer id.
    """
    # Check the length first: decoding base58 takes time quadratic in it, and the text may be hostile.
    try:
        raw = base58.b58decode(peer_id) if len(peer_id) == 52 else b""
    except ValueError:
        raw = b""
    if not raw.startswith(_PEER_ID_PREFIX) or len(raw) != len(_PEER_ID_PREFIX) + PUBLIC_KEY_BYTES:
        raise WrongKey(f"{peer_id[:64]!r} is no peer id")
    return raw[len(_PEER_ID_PREFIX) :]


def verify_bytes(public_key: bytes, domain: str, payload: bytes, signature: bytes) -> None:
    """Check a signature made by ``Identity.sign_bytes``.

    Raises:
        BadSignature: the signature is not ``public_key``'s of this payload for this domain.
        WrongKey: ``public_key`` is no Ed25519 public key.
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
    except ValueError as error:
        raise WrongKey("not an Ed25519 public key", cause=str(error)) from None
    try:
        key.verify(signature, _message(domain, payload))
    except InvalidSignature:
        raise BadSignature(f"a signature for {domain!r} does not verify") from None


def verify_signed(signed: pb.Signed, domain: str, expected_public_key: bytes) -> bytes:
    """Verify that ``expected_public_key`` signed an object, and return its payload.

    Raises:
        WrongKey: the object is signed with another key.
        BadSignature: the signature does not verify.
    """
    if signed.public_key != expected_public_key:
        raise WrongKey(
            f"an object for {domain!r} is signed with another key",
            cause=f"expected {expected_public_key.hex()}, got {signed.public_key[:PUBLIC_KEY_BYTES].hex()}",
            fix="check that the invite is of this run",
        )
    verify_bytes(expected_public_key, domain, signed.payload, signed.signature)
    return signed.payload


def _message(domain: str, payload: bytes) -> bytes:
    return domain.encode("ascii") + b"\0" + payload
