"""Archive old events of a run in compressed files: JSON lines in zstd, named by their first event."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import zstandard

from coordinator.ledger.retention import segments_to_delete
from coordinator.ledger.store import StoryEntry
from rollcast.runtime.errors import StoreError
from rollcast.runtime.run_folder import run_folder_error, write_atomically

_LEVEL = 6
_SEGMENT_BYTES_MAX = 1 << 30  # decompressed


def write_segment(folder: Path, entries: Sequence[StoryEntry], bytes_max: int) -> Path:
    """Write events durably to a segment file, then delete the oldest segments beyond ``bytes_max``.

    Writing the same events again, as after a crash, replaces their file.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    lines = [
        json.dumps([one.order, one.at_unix_s, one.kind, one.subject, one.detail, one.cause], separators=(",", ":"))
        for one in entries
    ]
    data = zstandard.ZstdCompressor(level=_LEVEL).compress(("\n".join(lines) + "\n").encode())
    path = folder / f"{entries[0].order:020}.jsonl.zst"
    try:
        folder.mkdir(exist_ok=True)
        write_atomically(path, data)
        before = segments(folder)[:-1]
        too_many = segments_to_delete([one.stat().st_size for one in before], max(0, bytes_max - len(data)))
        for old in before[:too_many]:
            old.unlink()
    except OSError as error:
        raise run_folder_error(folder, error) from None
    return path


def segments(folder: Path) -> list[Path]:
    """Return the segment files, oldest first."""
    return sorted(folder.glob("*.jsonl.zst"))


def read_segment(path: Path) -> Iterator[StoryEntry]:
    """Yield the events of a segment file.

    Raises:
        StoreError: it cannot be read or is damaged.
    """
    try:
        data = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=_SEGMENT_BYTES_MAX)
        for line in data.decode().splitlines():
            yield StoryEntry(*json.loads(line))
    except (OSError, ValueError, TypeError, zstandard.ZstdError) as error:
        raise StoreError(f"cannot read the event segment {path.name}", cause=str(error)) from None
