"""Refuses uploads before the disk is full, and keeps a ballast file to let go of then.

A full disk cannot even delete in WAL mode. So below a low-water mark of free space peers are told to come again later
(they keep their rollouts), and the ballast makes room in which the store can still be compacted and closed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import structlog

from rollcast.runtime.run_folder import run_folder_error

BALLAST = "ballast"
RESUME_FACTOR = 2.0  # times the low-water mark that must be free again, so that we do not change our mind all the time

_log = structlog.get_logger()


def free_bytes(folder: Path) -> int:
    """What an ordinary user may still write there."""
    return shutil.disk_usage(folder).free


class DiskGuard:
    """Look at the disk with ``look``, now and then; ask ``refusing`` before anything large is taken in."""

    def __init__(
        self, folder: Path, *, free_bytes_min: int, ballast_bytes: int, probe: Callable[[Path], int] = free_bytes
    ) -> None:
        self._folder = folder
        self._free_bytes_min = free_bytes_min
        self._ballast_bytes = ballast_bytes
        self._probe = probe
        self.free_bytes = free_bytes_min
        self.refusing = False

    def look(self) -> bool:
        """Whether that changed anything.

        Raises:
            RunFolderError: the folder cannot be looked at, or the ballast not written though there is room.
        """
        try:
            self.free_bytes = self._probe(self._folder)
            if not self.refusing and self.free_bytes < self._free_bytes_min:
                (self._folder / BALLAST).unlink(missing_ok=True)
                self.refusing = True
                _log.error("disk almost full: uploads are refused", free_bytes=self.free_bytes)
                return True
            is_roomy = self.free_bytes >= self._free_bytes_min * RESUME_FACTOR + self._ballast_bytes
            if is_roomy and (self.refusing or not (self._folder / BALLAST).exists()):
                self._write_ballast()
                if self.refusing:
                    _log.info("disk has room again: uploads are taken", free_bytes=self.free_bytes)
                self.refusing = False
                return True
        except OSError as error:
            raise run_folder_error(self._folder, error) from None
        return False

    def close(self) -> None:
        """Delete the ballast: nobody guards it any more."""
        with contextlib.suppress(OSError):
            (self._folder / BALLAST).unlink(missing_ok=True)

    def _write_ballast(self) -> None:
        """Space of its own, not a hole."""
        descriptor = os.open(self._folder / BALLAST, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, max(1, self._ballast_bytes))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
