"""Run a slow peer whose relay flips a bit in every chunk that it sends; it is started in place of the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from slow_peer import be_slow

from peer.links import stream_link
from rollcast.cli.main import main
from rollcast.wire.ids import StripeId

_send_chunk = stream_link.StreamLink.send_chunk


def send_corrupted(self: Any, version: int, encoding_id: int, index: int, payload: bytes, stripe: StripeId) -> None:
    damaged = bytearray(payload)
    damaged[len(damaged) // 2] ^= 1
    _send_chunk(self, version, encoding_id, index, bytes(damaged), stripe)


if __name__ == "__main__":
    stream_link.StreamLink.send_chunk = send_corrupted  # type: ignore[method-assign]
    be_slow(Path(sys.argv.pop(1)))
    main()
