"""Move a stopped run's store from SQLite to PostgreSQL, and back.

At every moment at most one of the two stores can be continued. A kill leaves the run in the source, or in the target,
or between both; the same command then completes the migration:

- To PostgreSQL, one transaction copies all tables and hands the leadership to no coordinator. Then the run folder
  names the database, the ledger is renamed, and the leadership becomes free.
- To SQLite, a partial file is filled and compared. Then the leadership of the database goes to no coordinator for good,
  the file gets its name, and the run folder forgets the database.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from capacity.fleet.journal import read_journal
from capacity.fleet.rows import encode
from coordinator.ledger.saved_orders import APPLIED
from coordinator.ledger.sql import SqlConnection
from coordinator.ledger.sql_facts import get_meta, put_meta
from coordinator.recovery.authority import FINGERPRINT, SEALED
from coordinator.recovery.sealed_keys import read_or_create_key, seal, unseal
from coordinator.stores import postgres, postgres_schema, sqlite, sqlite_schema
from coordinator.stores.copying import (
    Contents,
    PostgresTables,
    Progress,
    SqliteTables,
    contents,
    copy,
    differences,
    is_empty,
)
from coordinator.stores.leadership import held
from coordinator.stores.mark import check_mark
from coordinator.stores.postgres import insert_fleet_journal, select_fleet_journal
from coordinator.stores.reader import has_run, has_url, store_url
from rollcast.runtime.errors import MigrationError
from rollcast.runtime.run_folder import RunFolder, fsync_folder, no_run, run_folder_error, write_atomically
from rollcast.wire.identity.run_ca import run_ca_path
from rollcast.wire.ids import RunId

MIGRATED = "store.sqlite.migrated"  # name of the ledger after its migration to PostgreSQL
PARTIAL = "store.sqlite.partial"
#: The key of the run's authority and the applied workers are in the store only where several hosts share it.
_NOT_COPIED = frozenset({SEALED, APPLIED})


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result of a migration.

    Args:
        tables: what each table holds, the same in both stores.
    """

    run_id: str
    source: str
    target: str
    tables: Mapping[str, Contents]


def to_postgres(run: RunFolder, url: str, key_file: Path, progress: Progress) -> Migrated:
    """Move the run from the ledger in its folder to an empty database.

    Args:
        key_file: file of the key that encrypts the run authority's key in the database; it is created if missing.

    Raises:
        MigrationError: a coordinator leads in the database, which holds something, or it has the run already.
        StoreError: a store is in use, damaged, or does not answer.
        RunFolderError, WrongKey: the folder holds no run or cannot be written, or the key file holds no key.
    """
    _check_run(run)
    url = postgres.checked_url(url)
    holder = _holder("leaving", run.ledger)
    with _locked(run.ledger):
        if not run.ledger.exists() and has_url(run) and store_url(run) == url:
            migrated = _completed(run, url, holder)
        else:
            with _ledger(run) as source:
                migrated = _into_postgres(run, source, url, key_file, holder, progress)
            _name_store(run, url)
            _retire(run)
        _release(url, holder)
    return migrated


def to_sqlite(run: RunFolder, key_file: Path, progress: Progress) -> Migrated:
    """Move the run from its database to a ledger in its folder. No coordinator can lead in the database afterwards.

    Raises:
        MigrationError: a coordinator leads, the folder has a ledger of other contents, or the run is not in PostgreSQL.
        StoreError, RunFolderError, WrongKey: see to_postgres.
    """
    _check_run(run)
    with _locked(run.ledger):
        if not has_url(run):
            raise MigrationError(
                f"the store of {run.root} is not in PostgreSQL", fix="give the run folder of a coordinator that led"
            )
        holder = _holder("left for", run.ledger)
        with _transaction(store_url(run), holder) as source:
            migrated, is_new = _into_sqlite(run, source, progress)
            _unseal_authority(run, source, RunId(migrated.run_id), key_file)
            _write_fleet(run, source)
            _give_leadership(source, holder)
        try:
            if is_new:
                os.replace(_partial(run), run.ledger)
            run.store_url.unlink()
            fsync_folder(run.root)
        except OSError as error:
            raise run_folder_error(run.ledger, error) from None
    return migrated


# ---------------------------------------------------------------- to PostgreSQL


def _into_postgres(
    run: RunFolder, source: sqlite3.Connection, url: str, key_file: Path, holder: str, progress: Progress
) -> Migrated:
    """Copy in one transaction, or verify the copy that a migration made before it was killed."""
    run_id = _run_id(source, run.root)
    with _transaction(url, holder) as target:
        read = PostgresTables(target, _NOT_COPIED)
        if is_empty(PostgresTables(target)):
            found = copy(SqliteTables(source, _NOT_COPIED), read, progress)
            _seal_authority(run, source, target, run_id, key_file)
            _copy_fleet(run, target)
        elif get_meta(target, "run_id") == run_id:
            found = contents(SqliteTables(source, _NOT_COPIED))
        else:
            raise MigrationError(f"{url} is not empty", cause="it holds another run", fix="create an empty database")
        _same(found, contents(read), url)
        _give_leadership(target, holder)
    return Migrated(run_id, str(run.ledger), url, found)


def _completed(run: RunFolder, url: str, holder: str) -> Migrated:
    """Return what a migration that ended before the leadership was free has copied."""
    with _transaction(url, holder) as target:
        if held(target).holder != holder:
            raise MigrationError(f"the store of {run.root} is in {url} already", fix="start its coordinators")
        run_id = _run_id(target, run.root)
        return Migrated(run_id, str(run.ledger), url, contents(PostgresTables(target, _NOT_COPIED)))


def _seal_authority(
    run: RunFolder, source: SqlConnection, target: SqlConnection, run_id: RunId, key_file: Path
) -> None:
    """Store the key of the run's authority encrypted, so that a standby on another host has it."""
    if get_meta(source, FINGERPRINT) is None:
        return
    path = run_ca_path(run.secrets)
    key = read_or_create_key(run.secrets / key_file, may_create=True)
    try:
        put_meta(target, SEALED, seal(key, run_id, path.read_bytes()))
    except OSError as error:
        raise run_folder_error(path, error) from None


def _copy_fleet(run: RunFolder, target: SqlConnection) -> None:
    """Store which machines were started, and which ones operators asked for."""
    insert_fleet_journal(target, [encode(row) for row in read_journal(run.fleet_journal)])
    try:
        put_meta(target, APPLIED, run.fleet_applied.read_text())
    except FileNotFoundError:
        return
    except OSError as error:
        raise run_folder_error(run.fleet_applied, error) from None


def _name_store(run: RunFolder, url: str) -> None:
    try:
        write_atomically(run.store_url, f"{url}\n".encode(), mode=0o600)
    except OSError as error:
        raise run_folder_error(run.store_url, error) from None


def _retire(run: RunFolder) -> None:
    try:
        os.replace(run.ledger, run.root / MIGRATED)
        fsync_folder(run.root)
    except OSError as error:
        raise run_folder_error(run.ledger, error) from None


def _release(url: str, holder: str) -> None:
    """Let a coordinator lead."""
    with _transaction(url, holder) as target:
        target.execute("UPDATE leadership SET holder = '', until_unix_s = 0")


# ---------------------------------------------------------------- to SQLite


def _into_sqlite(run: RunFolder, source: postgres.PostgresConnection, progress: Progress) -> tuple[Migrated, bool]:
    """Fill and verify a partial file; return False if the whole ledger exists, because a migration was killed."""
    run_id = _run_id(source, run.root)
    tables = PostgresTables(source, _NOT_COPIED)
    is_new = not run.ledger.exists()
    if is_new:
        found = _fill_partial(_partial(run), tables, progress)
        copied = _contents_of(_partial(run))
    else:
        found = contents(tables)
        copied = _contents_of(run.ledger)
    _same(found, copied, str(run.ledger))
    return Migrated(run_id, store_url(run), str(run.ledger), found), is_new


def _fill_partial(path: Path, source: PostgresTables, progress: Progress) -> dict[str, Contents]:
    try:
        path.unlink(missing_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite.connect(path)) as connection:
            # A file that a kill leaves behind is made anew, so it needs no journal.
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            sqlite_schema.migrate(connection)
            found = copy(source, SqliteTables(connection), progress)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    except sqlite3.Error as error:
        raise sqlite.store_error(path, error) from None
    except OSError as error:
        raise run_folder_error(path, error) from None
    return found


def _contents_of(ledger: Path) -> dict[str, Contents]:
    with sqlite.read_only(ledger) as connection:
        return contents(SqliteTables(connection, _NOT_COPIED))


def _unseal_authority(run: RunFolder, source: SqlConnection, run_id: RunId, key_file: Path) -> None:
    """Write the key of the run's authority, which SQLite does not hold, to the run folder."""
    sealed = get_meta(source, SEALED)
    if sealed is None:
        return
    key = read_or_create_key(run.secrets / key_file, may_create=False)
    path = run_ca_path(run.secrets)
    try:
        write_atomically(path, unseal(key, run_id, sealed), mode=0o600)
    except OSError as error:
        raise run_folder_error(path, error) from None


def _write_fleet(run: RunFolder, source: SqlConnection) -> None:
    """Write which machines were started, and which ones operators asked for, to the run folder."""
    lines, applied = select_fleet_journal(source), get_meta(source, APPLIED)
    try:
        run.fleet_journal.parent.mkdir(exist_ok=True)
        if lines:
            write_atomically(run.fleet_journal, b"".join(lines), mode=0o600)
        if applied is not None:
            write_atomically(run.fleet_applied, applied.encode())
    except OSError as error:
        raise run_folder_error(run.fleet_journal, error) from None


def _partial(run: RunFolder) -> Path:
    return run.root / PARTIAL


# ---------------------------------------------------------------- shared parts


def _check_run(run: RunFolder) -> None:
    """Raise RunFolderError if the folder holds no run; before the lock, which would leave a file there."""
    if not has_run(run):
        raise no_run(run.root, run.ledger.name)


@contextmanager
def _locked(ledger: Path) -> Iterator[None]:
    """Keep coordinators away from the ledger, whether it exists or not."""
    descriptor = sqlite.lock(ledger)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _ledger(run: RunFolder) -> Iterator[sqlite3.Connection]:
    """Open the locked ledger with the newest schema; afterwards all of it is in one file."""
    if not run.ledger.exists():
        raise MigrationError(
            f"the store of {run.root} is not in SQLite",
            cause=f"it is in {store_url(run)}",
            fix="move it with `rollcast migrate RUN_FOLDER sqlite` first",
        )
    try:
        with closing(sqlite.connect(run.ledger)) as connection:
            sqlite_schema.migrate(connection)
            check_mark(connection, run.ledger)
            # Readers may be open: without a write-ahead log none of them holds a part of the ledger.
            connection.execute("PRAGMA journal_mode = DELETE")
            yield connection
    except sqlite3.Error as error:
        raise sqlite.store_error(run.ledger, error) from None


@contextmanager
def _transaction(url: str, holder: str) -> Iterator[postgres.PostgresConnection]:
    """Run the body in one transaction, during which no coordinator can lead.

    Raises:
        MigrationError: a coordinator leads, or another migration has the database.
        StoreError: the database does not answer.
    """
    error_type = postgres.errors().any
    try:
        with closing(postgres.connect(url)) as connection:
            postgres_schema.migrate(connection)
            connection.execute("BEGIN")
            connection.execute("SELECT 1 FROM leadership FOR UPDATE").fetchone()
            connection.execute("SET LOCAL statement_timeout = 0")
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            leader = held(connection)
            if leader.left_s > 0 and leader.holder != holder:
                raise MigrationError(
                    f"the run in {url} is not free",
                    cause=f"it is held by {leader.holder}, at {leader.address or 'no address'}",
                    fix="stop every coordinator of the run, and repeat the command after 3 s",
                )
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(error_type):
                    connection.execute("ROLLBACK")
                raise
    except error_type as error:
        raise postgres.store_error(error) from None


def _give_leadership(connection: SqlConnection, holder: str) -> None:
    """Let no coordinator lead until _release."""
    connection.execute("UPDATE leadership SET holder = ?, address = '', until_unix_s = 'Infinity'", (holder,))


def _holder(what: str, ledger: Path) -> str:
    """Return the name under which a migration holds the leadership; the same one when it is repeated."""
    return f"migration {what} {socket.gethostname()}:{ledger.resolve()}"


def _run_id(connection: SqlConnection, folder: Path) -> RunId:
    run_id = get_meta(connection, "run_id")
    if run_id is None:
        raise MigrationError(f"the run in {folder} has not started", fix="start the coordinator once")
    return RunId(run_id)


def _same(source: Mapping[str, Contents], target: Mapping[str, Contents], name: str) -> None:
    different = differences(source, target)
    if different:
        raise MigrationError(
            f"{name} differs from the store that was read",
            cause=f"these tables differ: {', '.join(different)}",
            fix="if it was used before, choose an empty database, or move the file away; else check the disks",
        )
