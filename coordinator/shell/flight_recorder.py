"""Write the flight record of a run: every event that the core received, in segments of bounded size.

The record serves people who investigate afterwards; the run never depends on it. Entries are packed on the event loop,
and compressed and written by a thread. If the disk does not keep up, entries are left out and the gap is noted; if it
fails, the recording ends with a warning. Nothing is synced before the end: a crash may lose the newest entries.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import structlog

from coordinator.core.events.actions import Action
from coordinator.core.events.events import Event
from coordinator.core.flight_format import Gap, Head, event_entry, frame, pack

_log = structlog.get_logger()

SEGMENT_BYTES = 16 << 20
FLUSH_S = 1.0
FRAME_BYTES = 4 << 20  # packed entries in one frame, approximately
WAITING_BYTES_MAX = 32 << 20  # packed entries that may wait for the disk


def segment_path(folder: Path, incarnation: int, number: int) -> Path:
    """Return the path of a segment of one coordinator's life; the order of names is the order of time."""
    return folder / f"{incarnation:08d}-{number:08d}.rec"


class Recorder:
    """One coordinator's record. ``note`` is called on the event loop; everything else happens on a thread.

    Args:
        folder: created if missing.
        bytes_max: most bytes of all segments together; the oldest are deleted.
    """

    def __init__(self, folder: Path, incarnation: int, head: Head, *, bytes_max: int) -> None:
        self._folder = folder
        self._incarnation = incarnation
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._waiting: list[bytes] = [pack(head)]
        self._waiting_bytes = len(self._waiting[0])
        self._left_out = 0
        self._segment = 0
        self._segment_bytes = 0
        self._closing = threading.Event()
        self._enough = threading.Event()
        self.failed = False
        self._thread = threading.Thread(target=self._write, name="flight recorder", daemon=True)
        self._thread.start()

    def note(self, now: float, event: Event, actions: Sequence[Action]) -> None:
        """Record one event and the actions that followed."""
        if self.failed:
            return
        packed = pack(event_entry(now, event, actions))
        with self._lock:
            if self._waiting_bytes + len(packed) > WAITING_BYTES_MAX:
                self._left_out += 1
                return
            if self._left_out:
                self._waiting.append(pack(Gap(self._left_out)))
                self._left_out = 0
            self._waiting.append(packed)
            self._waiting_bytes += len(packed)
            if self._waiting_bytes >= FRAME_BYTES:
                self._enough.set()

    def close(self) -> None:
        """Write the remaining entries; blocks until they are written."""
        self._closing.set()
        self._enough.set()
        self._thread.join()

    # ---------------------------------------------------------------- thread

    def _write(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            while not self._closing.is_set():
                self._enough.wait(FLUSH_S)
                self._enough.clear()
                self._flush(sync=False)
            self._flush(sync=True)
        except OSError as error:
            self.failed = True
            _log.warning("the flight record ends here", folder=str(self._folder), cause=str(error))

    def _flush(self, *, sync: bool) -> None:
        with self._lock:
            packed, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not packed:
            return
        data = frame(packed)
        if self._segment_bytes and self._segment_bytes + len(data) > SEGMENT_BYTES:
            self._segment, self._segment_bytes = self._segment + 1, 0
        path = segment_path(self._folder, self._incarnation, self._segment)
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        self._segment_bytes += len(data)
        self._delete_oldest(keep=path)

    def _delete_oldest(self, *, keep: Path) -> None:
        segments = sorted(self._folder.glob("*.rec"))
        sizes = [segment.stat().st_size for segment in segments]
        total = sum(sizes)
        for segment, size in zip(segments, sizes, strict=True):
            if total <= self._bytes_max or segment == keep:
                return
            segment.unlink()
            total -= size
