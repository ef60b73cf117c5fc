"""`rollcast backup`, `restore` and `migrate`: copy a run, or move its store between SQLite and PostgreSQL."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollcast.cli.options import Json
from rollcast.runtime.run_folder import RunFolder, is_of_up

if TYPE_CHECKING:
    from coordinator.core.events.actions import RecordEpoch
    from coordinator.recovery.backup import BackedUp, Progress

_REPORT_EVERY_S = 0.5
_WITHOUT_SECRETS = "The backup has no secrets. All machines must join again with new invites."
_WITHOUT_SECRETS_OF_UP = (
    "The backup has no secrets. The run gets a new authority when it goes on, and its learner has a new key, with which"
    " its versions have been signed again. The processes that `rollcast up` starts join by themselves; other machines"
    " must join again with new invites (`rollcast invite`)."
)


def backup(
    run_folder: Path,
    target: Path,
    /,
    *,
    without_secrets: Annotated[bool, Parameter(negative=())] = False,
    json_output: Json = False,
) -> int:
    """Back up a run to a new folder while its coordinator is running.

    Parameters
    ----------
    run_folder
        The coordinator's run folder, for example runs/coordinator.
    target
        Folder for the backup, which must not exist yet. It will contain the run's keys: keep it as safe as the run
        folder.
    without_secrets
        Leave out the run's CA, its invites, and the learner's key of a run of `rollcast up`. After such a backup is
        restored, the learner signs with a new key and all machines must join again.
    json_output
        Print one JSON object.
    """
    from coordinator.recovery.backup import back_up

    progress = _progress(json_output)
    made = back_up(RunFolder(run_folder), target, with_secrets=not without_secrets, progress=progress)
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
    """Restore a run folder from a backup, and print the command that continues the run. Every file is checked.

    The lost coordinator must not run any more. Whatever it acknowledged after the backup is lost. The run continues in
    a new epoch, with version numbers above all that can have been published since. A learner with a run folder of its
    own, which the backup does not hold, needs its checkpoints and versions of the same time: it must not have trained
    on what was lost.

    Parameters
    ----------
    backup_folder
        Folder that `rollcast backup` created.
    run_folder
        Run folder to create, which must not exist yet.
    nothing_lost
        Continue in the same epoch. Only valid if the coordinator was stopped before the backup and has not run since.
    json_output
        Print one JSON object.
    """
    from coordinator.recovery.backup import restore as restore_backup
    from rollcast.cli.run.run_tools import run_config

    made, epoch = restore_backup(backup_folder, RunFolder(run_folder), nothing_lost=nothing_lost)
    _show(made, run_folder, "restored to", json_output)
    print("\n".join(_continuation(run_folder, run_config(run_folder).run.steps, epoch)), file=sys.stderr)
    if not made.has_secrets:
        print(_WITHOUT_SECRETS_OF_UP if is_of_up(run_folder) else _WITHOUT_SECRETS, file=sys.stderr)
    return 0


def _continuation(folder: Path, steps: int, epoch: RecordEpoch | None) -> list[str]:
    """Return how a restored run of so many steps goes on: what differs from before, and the commands.

    epoch: the epoch with which it begins; None: it goes on in the same one.
    """
    if epoch is not None and epoch.step_from >= steps:
        return [
            f"All {steps} steps of this run are done: nothing is left to train. `rollcast report`, `samples` and"
            " `explain` read it, and `rollcast eval` and `export` use its policy."
        ]
    lines, of_up = [], is_of_up(folder)
    longer = ""
    if epoch is not None:
        prefix = "coordinator." if of_up else ""
        longer = f" --set {prefix}run.steps={steps + epoch.step_to - epoch.step_from}"
        lines.append(
            f"The copy ends after step {epoch.step_from}. The run may since have published versions up to"
            f" {epoch.step_to}, so it goes on with step {epoch.step_to + 1}, in epoch {epoch.epoch}. run.steps counts"
            f" the {epoch.step_to - epoch.step_from} steps that stay empty:{longer} ({steps} before) trains the"
            f" {steps - epoch.step_from} steps that were left."
        )
    if of_up:
        command = [f"rollcast up --continue {folder}{longer}"]
        lines.append("Go on, in the folder in which the run was started if its configuration has relative paths, with")
    else:
        command = [
            f"rollcast coordinator COORDINATOR.toml --set run_folder={folder}{longer}",
            "rollcast learner LEARNER.toml    # its run_folder as it was when the backup was made",
            f"rollcast peer run ORIGIN.toml --set invite_file={folder}/secrets/invite-origin.txt",
            f"rollcast peer run PEER.toml      # its invite: {folder}/secrets/invite-peer.txt",
        ]
        lines.append(
            "Go on with the configuration files of each process, on its machine (learner and peers keep theirs):"
        )
    return [*lines, *(f"    {one}" for one in command)]


def migrate(
    run_folder: Path,
    target: str,
    /,
    *,
    key_file: Path = Path("store.key"),
    json_output: Json = False,
) -> int:
    """Move the store of a stopped run between SQLite and PostgreSQL, and compare every table of both.

    Every coordinator of the run must be stopped. Run the same command again if it was killed. Afterwards set store.url
    in the configuration of every coordinator, or remove it. The old ledger is kept as store.sqlite.migrated; a database
    that the run has left can no longer be led.

    Parameters
    ----------
    run_folder
        The coordinator's run folder, for example runs/coordinator.
    target
        URL of an empty PostgreSQL database, without a password; or `sqlite`, for the run folder.
    key_file
        File of the key that encrypts the run authority's key in the database, as store.key_file.
    json_output
        Print one JSON object.
    """
    from coordinator.recovery import migration

    run, progress = RunFolder(run_folder), _progress(json_output)
    if target == "sqlite":
        moved = migration.to_sqlite(run, key_file, progress)
    else:
        moved = migration.to_postgres(run, target, key_file, progress)
    if json_output:
        print(json.dumps(asdict(moved)))
    else:
        rows = sum(table.rows for table in moved.tables.values())
        print(f"{moved.run_id}: {rows:,} rows of {len(moved.tables)} tables moved to {moved.target}, and compared")
        then = "Remove store.url from" if target == "sqlite" else f'Set url = "{target}" under [store] in'
        print(f"{then} the configuration of every coordinator before you start it.", file=sys.stderr)
    return 0


def _progress(is_silent: bool) -> Progress:
    """Return a function that prints how much of a store is copied, at most twice a second."""
    shown_at_s = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal shown_at_s
        now_s = time.monotonic()
        if now_s - shown_at_s >= _REPORT_EVERY_S and total and not is_silent:
            shown_at_s = now_s
            print(f"ledger {100 * done // total} %", file=sys.stderr)

    return progress


def _show(made: BackedUp, folder: Path, what: str, json_output: bool) -> None:
    if json_output:
        print(json.dumps({**asdict(made), "folder": str(folder)}))
    else:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(made.created_unix_s))
        print(f"{made.run_id} as of {at}, {made.files} files, {made.size_bytes / 1e6:.1f} MB, {what} {folder}")
