"""Keep the key of the run's authority in a shared store, encrypted, so that every coordinator of the run has it."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from rollcast.runtime.errors import RunFolderError, WrongKey
from rollcast.runtime.run_folder import run_folder_error, write_atomically
from rollcast.wire.ids import RunId

KEY_BYTES = 32
NONCE_BYTES = 12  # RFC 8439, section 2.8
_FILE_BYTES_MAX = 4096


def seal(key: bytes, run_id: RunId, plain: bytes) -> str:
    """Return the bytes encrypted for this run, as text for the store (ChaCha20-Poly1305, RFC 8439)."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return base64.b64encode(nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, run_id.encode())).decode()


def unseal(key: bytes, run_id: RunId, sealed: str) -> bytes:
    """Return what ``seal`` encrypted.

    Raises:
        WrongKey: the key is another one, or the text is damaged or of another run.
    """
    try:
        data = base64.b64decode(sealed, validate=True)
        return ChaCha20Poly1305(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], run_id.encode())
    except (InvalidTag, ValueError) as error:
        raise WrongKey(
            "store.key_file does not decrypt the key of the run's authority",
            cause=str(error) or "it is not the key with which the first coordinator of the run encrypted it",
            fix="copy the file from the host on which the run began",
        ) from None


def read_or_create_key(path: Path, *, may_create: bool) -> bytes:
    """Return the key in a file of 64 hexadecimal digits; a new run gets one (mode 0600).

    Raises:
        RunFolderError: the file is missing and must not be created, or cannot be read or written.
        WrongKey: it holds no key.
    """
    try:
        if may_create and not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, f"{secrets.token_hex(KEY_BYTES)}\n".encode(), mode=0o600)
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise ValueError("it is too large")
        key = bytes.fromhex(path.read_text().strip())
        if len(key) != KEY_BYTES:
            raise ValueError(f"it has {len(key)} bytes, not {KEY_BYTES}")
    except FileNotFoundError:
        raise RunFolderError(
            f"there is no {path}",
            cause="it decrypts the key of the run's authority, which is in the store",
            fix="copy it from the host on which the run began, and set store.key_file",
        ) from None
    except OSError as error:
        raise run_folder_error(path, error) from None
    except ValueError as error:
        raise WrongKey(
            f"{os.fspath(path)} holds no key", cause=str(error), fix="copy it from the host on which the run began"
        ) from None
    return key
