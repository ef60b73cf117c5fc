"""Keep the workers that operators asked for, so that a restarted coordinator or a standby wants them too.

They are in a file of the run folder; where several hosts share the store, in its meta.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from capacity.model.workers import WORKER_ID
from coordinator.ledger.saved_orders import APPLIED
from coordinator.ledger.store import RunStore
from rollcast.runtime.errors import StoreError
from rollcast.runtime.run_folder import write_atomically

SCHEMA = 1
FILE_BYTES_MAX = 16 << 20


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    workers: dict[str, str]


class AppliedWorkers:
    """The applied set; ``reasons`` maps the workers' ids to the reason.

    Args:
        save: stores the text of a set durably.
    """

    def __init__(self, save: Callable[[bytes], Awaitable[None]], reasons: Mapping[str, str]) -> None:
        self._save = save
        self._changing = asyncio.Lock()
        self.reasons: Mapping[str, str] = dict(reasons)

    @classmethod
    def load(cls, path: Path) -> AppliedWorkers:
        """Read the set; empty where there is no file. Blocks on the disk.

        Raises:
            StoreError: the file cannot be read, or is damaged.
        """

        async def save(text: bytes) -> None:
            await asyncio.to_thread(_write, path, text)

        return cls(save, _read(path))

    @classmethod
    async def stored(cls, store: RunStore, path: Path) -> AppliedWorkers:
        """Read the set from a store that hosts share; if it has none, from the file.

        Raises:
            StoreError: the database or the disk refuses, or the set is damaged.
        """

        async def save(text: bytes) -> None:
            await store.set_meta(APPLIED, text.decode())

        text = await store.get_meta(APPLIED)
        if text is None:
            return cls(save, await asyncio.to_thread(_read, path))
        try:
            return cls(save, _decoded(text.encode()))
        except ValueError as error:
            raise _error("the store", error) from None

    async def change(self, start: Iterable[str], stop: Iterable[str], reason: str) -> None:
        """Add workers, and take out others; durable once this returns.

        Raises:
            StoreError: the disk refuses; then the set is as it was.
        """
        async with self._changing:
            out = set(stop)
            kept = {one: why for one, why in self.reasons.items() if one not in out}
            changed = dict.fromkeys(start, reason) | kept
            await self._save(msgspec.json.format(msgspec.json.encode(_File(SCHEMA, changed))))
            self.reasons = changed


def _read(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError(f"it is larger than {FILE_BYTES_MAX >> 20} MiB")
        return _decoded(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _error(path, error) from None


def _decoded(text: bytes) -> dict[str, str]:
    """Return the set of a text. Raises ValueError if it is none."""
    file = msgspec.json.decode(text, type=_File)
    if file.schema != SCHEMA or not all(map(WORKER_ID.fullmatch, file.workers)):
        raise ValueError(f"it is not of schema {SCHEMA}, or names what is no worker")
    return file.workers


def _write(path: Path, text: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise _error(path, error) from None


def _error(path: Path | str, error: Exception) -> StoreError:
    return StoreError(
        f"the set of workers in {path} cannot be used",
        cause=str(error),
        fix="free some space; or remove the file, and run `rollcast capacity apply` again",
    )
