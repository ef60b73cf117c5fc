"""Migrate a run to PostgreSQL and end by SIGKILL after so many rows; test_migration.py runs this as a process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from coordinator.recovery.migration import to_postgres
from coordinator.stores import copying
from rollcast.runtime.run_folder import RunFolder


def main(folder: Path, url: str, rows: int) -> None:
    copying.ROWS_AT_ONCE = 1

    def progress(done: int, total: int) -> None:
        if done >= rows:
            os.kill(os.getpid(), signal.SIGKILL)

    to_postgres(RunFolder(folder), url, Path("store.key"), progress)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
