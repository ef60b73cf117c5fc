"""Keep a judge's answers and what they cost, in a SQLite file or in memory."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from rollcast.runtime.errors import TaskError

ROWS_MAX = 1_000_000
LOCK_TIMEOUT_S = 5.0
_TABLES = """
CREATE TABLE IF NOT EXISTS judgements (key BLOB PRIMARY KEY, text TEXT NOT NULL, tokens INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS spent (one INTEGER PRIMARY KEY CHECK (one = 1), tokens INTEGER NOT NULL, usd REAL NOT NULL)
  STRICT;
INSERT OR IGNORE INTO spent VALUES (1, 0, 0.0);
"""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's answer; ``tokens`` read and written, and ``usd`` paid for it: 0 for one that was kept."""

    text: str
    tokens: int
    usd: float


class Judgements:
    """Judgements by the hash of their question, and the sums of what was spent. Processes may share a file.

    Raises:
        TaskError: the file cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        try:
            self._connection = sqlite3.connect(
                ":memory:" if path is None else path.expanduser(), timeout=LOCK_TIMEOUT_S, isolation_level=None
            )
            self._connection.executescript(_TABLES)
        except sqlite3.Error as error:
            raise TaskError(
                f"cannot open the judgements in {path}", cause=str(error), fix="correct cache_file"
            ) from None

    def get(self, key: bytes) -> Judgement | None:
        """Return a judgement that was kept; None if there is none."""
        row = self._connection.execute("SELECT text FROM judgements WHERE key = ?", (key,)).fetchone()
        return None if row is None else Judgement(row[0], 0, 0.0)

    def put(self, key: bytes, judgement: Judgement) -> None:
        """Keep a judgement, unless there are too many."""
        self._connection.execute(
            "INSERT OR REPLACE INTO judgements SELECT ?, ?, ?"
            " WHERE (SELECT coalesce(max(rowid), 0) FROM judgements) < ?",
            (key, judgement.text.encode(errors="replace").decode(), judgement.tokens, ROWS_MAX),
        )

    def spend(self, tokens: int, usd: float) -> None:
        """Count what an answer cost."""
        self._connection.execute("UPDATE spent SET tokens = tokens + ?, usd = usd + ?", (tokens, usd))

    def spent(self) -> tuple[int, float]:
        """Return the tokens and US dollars spent so far."""
        tokens, usd = self._connection.execute("SELECT tokens, usd FROM spent").fetchone()
        return int(tokens), float(usd)
