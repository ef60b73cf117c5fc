from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import BadSignature, RunFolderError, WrongKey
from rollcast.wire.identity.identity import Identity, peer_id_of, public_key_of, verify_bytes, verify_signed


def test_peer_id_has_the_libp2p_form() -> None:
    # Test vector of the libp2p peer id specification.
    public_key = bytes.fromhex("1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
    assert peer_id_of(public_key) == "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"


@given(st.binary(min_size=32, max_size=32))
@settings(deadline=None, max_examples=50)
def test_peer_id_spells_the_key(public_key: bytes) -> None:
    assert public_key_of(peer_id_of(public_key)) == public_key


@given(st.text(max_size=80) | st.text("123456789ABCDEFGHJKLMNPQRSTUVWXYZ", min_size=52, max_size=52))
@settings(deadline=None, max_examples=100)
def test_other_text_is_no_peer_id(text: str) -> None:
    with pytest.raises(WrongKey):
        public_key_of(text)


def test_key_file_is_private_and_stable(tmp_path: Path) -> None:
    path = tmp_path / "made" / "learner.key"
    identity = Identity.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load_or_create(path).public_key == Identity.load(path).public_key == identity.public_key


def test_a_key_file_open_to_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    Identity.load_or_create(path)
    path.chmod(0o640)
    with pytest.raises(WrongKey, match="other users"):
        Identity.load(path)


def test_missing_and_foreign_key_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongKey):
        Identity.load(tmp_path / "none")
    path = tmp_path / "key"
    path.touch(0o600)
    with pytest.raises(WrongKey):
        Identity.load(path)
    path.write_bytes(generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(WrongKey, match="another kind"):
        Identity.load(path)


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError):
        Identity.load_or_create(tmp_path / "file" / "key")


def test_signature_is_bound_to_key_domain_and_payload() -> None:
    identity, other = Identity.generate(), Identity.generate()
    signed = identity.sign("rollcast/test/1", b"payload")
    assert verify_signed(signed, "rollcast/test/1", identity.public_key) == b"payload"
    with pytest.raises(BadSignature):
        verify_signed(signed, "rollcast/test/2", identity.public_key)
    with pytest.raises(WrongKey):
        verify_signed(signed, "rollcast/test/1", other.public_key)
    signed.public_key = other.public_key
    with pytest.raises(BadSignature):
        verify_signed(signed, "rollcast/test/1", other.public_key)


def test_every_flipped_bit_is_noticed() -> None:
    identity = Identity.generate()
    signature = identity.sign_bytes("rollcast/test/1", b"ab")
    for bit in range(16):
        payload = bytearray(b"ab")
        payload[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadSignature):
            verify_bytes(identity.public_key, "rollcast/test/1", bytes(payload), signature)
    for bit in range(len(signature) * 8):
        bad = bytearray(signature)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadSignature):
            verify_bytes(identity.public_key, "rollcast/test/1", b"ab", bytes(bad))


@pytest.mark.parametrize("signature", [b"", b"x", b"x" * 65])
def test_signatures_of_other_lengths_are_refused(signature: bytes) -> None:
    with pytest.raises(BadSignature):
        verify_bytes(Identity.generate().public_key, "rollcast/test/1", b"", signature)
    with pytest.raises(WrongKey):
        verify_bytes(b"short", "rollcast/test/1", b"", signature)


def test_repr_shows_no_secret() -> None:
    identity = Identity.generate()
    assert repr(identity) == f"Identity({identity.peer_id})"


def test_the_seed_is_the_private_key() -> None:
    identity = Identity.generate()
    again = Ed25519PrivateKey.from_private_bytes(identity.seed())
    assert again.public_key().public_bytes_raw() == identity.public_key
