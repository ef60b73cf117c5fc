"""Record the verdict on every rollout that this machine submitted: counts by day and reason, and each verdict.

Verdicts go to one JSON-lines file per day; the oldest files are deleted to make room. The counts of the last 400 days
stay in one small file. A disk that refuses costs what cannot be written, and never the peer's work.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import structlog

from rollcast.runtime.logs import FirstFailures
from rollcast.runtime.run_folder import write_atomically

log = structlog.get_logger()

ACCEPTED = "accepted"
_COUNTS_FILE = "counts.json"
_COUNTS_BYTES_MAX = 1 << 20
_DAYS_COUNTED = 400
_DAY_BYTES_MAX = 32 << 20  # of one day's verdicts
_DAYS_KEPT = 30
_NEWEST_KEPT = 200  # in memory, for screens


@dataclass(frozen=True, slots=True)
class Receipt:
    """One rollout's verdict.

    Args:
        at: local time, as 2026-11-22T08:00:00.
        verdict: "accepted", or why the rollout was not.
        tokens: number of tokens of the completion, those of an earlier attempt included.
    """

    at: str
    lease_id: int
    sample_index: int
    version: int
    tokens: int
    verdict: str


class Receipts:
    """The receipts in one folder, read at startup; a damaged file of counts is logged and taken as empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._days = self._read()
        self._unwritten = FirstFailures(log, "receipts are not written, verdicts are still counted")
        self.newest: deque[Receipt] = deque(maxlen=_NEWEST_KEPT)

    def today(self, local: datetime) -> dict[str, int]:
        """Return the counts by verdict of this day; empty if there are none."""
        return dict(self._days.get(f"{local:%Y-%m-%d}", {}))

    def total(self) -> dict[str, int]:
        """Return the counts by verdict over all days that are kept."""
        total: Counter[str] = Counter()
        for counts in self._days.values():
            total.update(counts)
        return dict(total)

    def add(self, receipts: Iterable[Receipt], local: datetime) -> None:
        """Count verdicts and append them to the day's file."""
        day = f"{local:%Y-%m-%d}"
        new = list(receipts)
        counts = self._days.setdefault(day, Counter())
        counts.update(receipt.verdict for receipt in new)
        self.newest.extend(new)
        with self._disk_may_refuse():
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{day}.jsonl"
            if not path.exists():
                self._make_room()
            elif path.stat().st_size > _DAY_BYTES_MAX:
                return
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(receipt)) + "\n" for receipt in new)

    def save(self) -> None:
        """Write the counts durably."""
        newest = dict(sorted(self._days.items())[-_DAYS_COUNTED:])
        with self._disk_may_refuse():
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / _COUNTS_FILE, json.dumps(newest).encode())

    @contextmanager
    def _disk_may_refuse(self) -> Iterator[None]:
        """Log the first failure of the disk in the body, and again only after it has worked."""
        try:
            yield
        except OSError as error:
            self._unwritten.failed(cause=str(error))
        else:
            self._unwritten.worked()

    def _make_room(self) -> None:
        for path in sorted(self._folder.glob("*.jsonl"))[: -_DAYS_KEPT + 1 or None]:
            path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Counter[str]]:
        try:
            with (self._folder / _COUNTS_FILE).open("rb") as file:
                values = json.loads(file.read(_COUNTS_BYTES_MAX))
            return {
                str(day): Counter({str(verdict): int(count) for verdict, count in counts.items()})
                for day, counts in values.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            log.warning("earlier receipts cannot be read: counting begins anew", cause=str(error))
            return {}
