"""Run a slow peer whose relay flips a bit in every chunk that it sends, and says so in its receipts.

It is started in place of the command line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from slow_peer import be_slow

from peer.links import stream_link
from peer.relay import accusations
from rollcast.cli.main import main
from rollcast.wire.ids import StripeId
from rollcast.wire.versions.chunks import blake3_hash

_send_chunk = stream_link.StreamLink.send_chunk


def damaged(payload: bytes) -> bytes:
    changed = bytearray(payload)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def send_corrupted(self: Any, version: int, encoding_id: int, index: int, payload: bytes, stripe: StripeId) -> None:
    _send_chunk(self, version, encoding_id, index, damaged(payload), stripe)


if __name__ == "__main__":
    stream_link.StreamLink.send_chunk = send_corrupted  # type: ignore[method-assign]
    accusations.blake3_hash = lambda payload: blake3_hash(damaged(payload))  # type: ignore[attr-defined]
    be_slow(Path(sys.argv.pop(1)))
    main()
