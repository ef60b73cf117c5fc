"""`rollcast backup` and `rollcast restore`: a lost coordinator host costs minutes, not the run."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from coordinator.recovery import backup as backups
from rollcast.cli.options import Json
from rollcast.runtime.run_folder import RunFolder

_REPORT_EVERY_S = 0.5


def backup(
    run_folder: Path,
    target: Path,
    /,
    *,
    without_secrets: Annotated[bool, Parameter(negative=())] = False,
    json_output: Json = False,
) -> int:
    """Copy a run to a new folder while its coordinator works.

    Parameters
    ----------
    run_folder
        the coordinator's, for example runs/coordinator.
    target
        a folder that does not exist yet. It holds the run's keys: keep it as safe as the run folder.
    without_secrets
        leave the run's CA and invites out. A run restored without them lets everybody join anew.
    json_output
        print one JSON object.
    """
    shown_at_s = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal shown_at_s
        now_s = time.monotonic()
        if now_s - shown_at_s >= _REPORT_EVERY_S and total and not json_output:
            shown_at_s = now_s
            print(f"ledger {100 * done // total} %", file=sys.stderr)

    made = backups.back_up(RunFolder(run_folder), target, with_secrets=not without_secrets, progress=progress)
    _show(made, target, "backed up to", json_output)
    return 0


def restore(
    backup_folder: Path,
    run_folder: Path,
    /,
    *,
    nothing_lost: Annotated[bool, Parameter(negative=())] = False,
    json_output: Json = False,
) -> int:
    """Make a run folder from a backup, every file checked, for `rollcast coordinator` to go on with.

    The lost coordinator must not run any more. What it acknowledged after the backup is gone, and the run goes on in a
    new epoch, with version numbers above all that can have been published since. The learner must be one that has not
    trained on what is gone: restore its checkpoints of the same time, too.

    Parameters
    ----------
    backup_folder
        what `rollcast backup` made.
    run_folder
        a folder that does not exist yet.
    nothing_lost
        the coordinator was stopped before the backup and has not run since: the run goes on as it was.
    json_output
        print one JSON object.
    """
    made, epoch = backups.restore(backup_folder, RunFolder(run_folder), nothing_lost=nothing_lost)
    _show(made, run_folder, "restored to", json_output)
    if epoch is not None:
        print(
            f"it goes on in epoch {epoch.epoch} at step {epoch.step_to}: the {epoch.step_to - epoch.step_from} steps"
            " before that are empty; raise run.steps by as many to train as long as planned",
            file=sys.stderr,
        )
    if not made.has_secrets:
        print("the backup has no secrets: everybody must join again with new invites", file=sys.stderr)
    return 0


def _show(made: backups.BackedUp, folder: Path, what: str, json_output: bool) -> None:
    if json_output:
        print(json.dumps({**asdict(made), "folder": str(folder)}))
    else:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(made.created_unix_s))
        print(f"{made.run_id} as of {at}, {made.files} files, {made.size_bytes / 1e6:.1f} MB, {what} {folder}")
