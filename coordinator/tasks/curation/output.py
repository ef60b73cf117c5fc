"""Write curated rows and removed ones to disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coordinator.tasks.curation.curate import Kept, Removed
from rollcast.runtime.errors import ConfigError, TaskError
from rollcast.runtime.run_folder import fsync_folder


def write_kept(out: Path, rows: Iterable[Kept], *, answers: bool) -> None:
    """Write all rows durably, then rename the file to its name: a killed run leaves no partial file there.

    ``answers``: whether the source has a column of answers.

    Raises:
        TaskError: the file cannot be written.
    """
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for kept in rows:
                file.write(json.dumps(_line(kept, answers), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(out)
        fsync_folder(out.parent)
    except OSError as error:
        raise TaskError(f"cannot write {out}", cause=str(error), fix="choose another --out") from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def removals(path: Path | None) -> Iterator[Callable[[Removed], None]]:
    """Yield a function that writes each removed row with its reason; with None it does nothing.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is None:
        yield lambda removed: None
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}", cause=str(error), fix="correct --removed") from None
    with file:

        def write(removed: Removed) -> None:
            file.write(json.dumps(asdict(removed)) + "\n")

        yield write


def _line(kept: Kept, answers: bool) -> dict[str, Any]:
    row = kept.row
    line: dict[str, Any] = {"prompt": row.messages or row.prompt} | ({"answer": row.answer} if answers else {})
    if row.tests is not None:
        line["tests"] = row.tests.to_json()
    if kept.pass_rate is not None:
        line |= {"pass_rate": kept.pass_rate.share, "samples": kept.pass_rate.samples}
    return {**row.metadata, **line}
