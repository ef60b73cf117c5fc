"""Refuse uploads before the disk is full, and keep a ballast file to delete then.

In WAL mode a full disk does not even allow deletion. So below a limit of free space uploads are refused as busy (peers
keep their rollouts), and deleting the ballast frees the space in which the store can still be compacted and closed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import structlog

from rollcast.runtime.logs import FirstFailures
from rollcast.runtime.run_folder import run_folder_error

BALLAST = "ballast"
RESUME_FACTOR = 2.0  # uploads resume at this multiple of the limit: hysteresis against flapping

_log = structlog.get_logger()


def free_bytes(folder: Path) -> int:
    """Return the bytes that an unprivileged user may still write there."""
    return shutil.disk_usage(folder).free


class DiskGuard:
    """Watches the free space. Call ``check`` periodically, and check ``refusing`` before storing anything large."""

    def __init__(
        self, folder: Path, *, free_bytes_min: int, ballast_bytes: int, probe: Callable[[Path], int] = free_bytes
    ) -> None:
        self._folder = folder
        self._free_bytes_min = free_bytes_min
        self._ballast_bytes = ballast_bytes
        self._probe = probe
        self.free_bytes = free_bytes_min
        self.refusing = False
        self._unwritten = FirstFailures(_log, "no ballast could be written")

    def check(self) -> bool:
        """Check the disk; return whether the state changed.

        Raises:
            RunFolderError: the folder cannot be checked.
        """
        try:
            self.free_bytes = self._probe(self._folder)
            if not self.refusing and self.free_bytes < self._free_bytes_min:
                self.refusing = True  # first: uploads run beside this thread, and must not spend what the ballast frees
                (self._folder / BALLAST).unlink(missing_ok=True)
                _log.error("disk almost full: uploads are refused", free_bytes=self.free_bytes)
                return True
            is_roomy = self.free_bytes >= self._free_bytes_min * RESUME_FACTOR + self._ballast_bytes
            if is_roomy and (self.refusing or not (self._folder / BALLAST).exists()) and self._has_written_ballast():
                if self.refusing:
                    _log.info("disk has free space again: uploads are accepted", free_bytes=self.free_bytes)
                self.refusing = False
                return True
        except OSError as error:
            raise run_folder_error(self._folder, error) from None
        return False

    def close(self) -> None:
        """Delete the ballast."""
        with contextlib.suppress(OSError):
            (self._folder / BALLAST).unlink(missing_ok=True)

    def _has_written_ballast(self) -> bool:
        """Write the ballast; return False if the space that there was has gone, or a quota allows less."""
        try:
            self._write_ballast()
        except OSError as error:
            self._unwritten.failed(folder=str(self._folder), cause=str(error))
            (self._folder / BALLAST).unlink(missing_ok=True)
            return False
        self._unwritten.worked()
        return True

    def _write_ballast(self) -> None:
        """Write the ballast as allocated blocks, not as a sparse file."""
        descriptor = os.open(self._folder / BALLAST, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, max(1, self._ballast_bytes))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
