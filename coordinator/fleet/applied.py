"""Keep the workers that operators asked for in the run folder, so that a restarted coordinator wants them too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from capacity.model.workers import WORKER_ID
from rollcast.runtime.errors import StoreError
from rollcast.runtime.run_folder import write_atomically

SCHEMA = 1
FILE_BYTES_MAX = 16 << 20


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    workers: dict[str, str]


class AppliedWorkers:
    """The applied set; ``reasons`` maps the workers' ids to the reason."""

    def __init__(self, path: Path, reasons: Mapping[str, str]) -> None:
        self._path = path
        self._changing = asyncio.Lock()
        self.reasons: Mapping[str, str] = dict(reasons)

    @classmethod
    def load(cls, path: Path) -> AppliedWorkers:
        """Read the set; empty where there is no file. Blocks on the disk.

        Raises:
            StoreError: the file cannot be read, or is damaged.
        """
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise ValueError(f"it is larger than {FILE_BYTES_MAX >> 20} MiB")
            file = msgspec.json.decode(path.read_bytes(), type=_File)
            if file.schema != SCHEMA or not all(map(WORKER_ID.fullmatch, file.workers)):
                raise ValueError(f"it is not of schema {SCHEMA}, or names what is no worker")
        except FileNotFoundError:
            return cls(path, {})
        except (OSError, ValueError) as error:
            raise _error(path, error) from None
        return cls(path, file.workers)

    async def change(self, start: Iterable[str], stop: Iterable[str], reason: str) -> None:
        """Add workers, and take out others; durable once this returns.

        Raises:
            StoreError: the disk refuses; then the set is as it was.
        """
        async with self._changing:
            out = set(stop)
            kept = {one: why for one, why in self.reasons.items() if one not in out}
            changed = dict.fromkeys(start, reason) | kept
            await asyncio.to_thread(self._write, changed)
            self.reasons = changed

    def _write(self, reasons: dict[str, str]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, msgspec.json.format(msgspec.json.encode(_File(SCHEMA, reasons))))
        except OSError as error:
            raise _error(self._path, error) from None


def _error(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"the set of workers in {path} cannot be used",
        cause=str(error),
        fix="free some space; or remove the file, and run `rollcast capacity apply` again",
    )
