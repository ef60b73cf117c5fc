"""Decide which coordinator leads: a row (epoch, holder, until) in PostgreSQL, renewed while it leads.

The row is a lease, not a lock: a session's advisory lock does not fence a leader that slept, and breaks behind poolers.
A standby takes the row once its time is over, by the database's clock alone, and raises the epoch. Every transaction
of a leader first selects the row with its epoch FOR KEY SHARE (PostgresEngine): so after a take-over the old leader
commits nothing, however long it was frozen.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from coordinator.ledger.sql import SqlConnection
from coordinator.stores.postgres import (
    LEADER,
    PostgresConnection,
    connect,
    errors,
    is_outage,
    lost_leadership,
    store_error,
)
from coordinator.stores.postgres_schema import NOW_UNIX_S, migrate
from rollcast.runtime.errors import LeadershipLost

RENEW_S = 0.5
TTL_S = 3.0
GIVE_UP_S = 5.0  # for the database to answer a leader that gives up
PAST_END_S = 0.02  # a standby tries again so long after the leader's time is over

CheckStandby = Callable[[SqlConnection], bool]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Held:
    """Who leads. ``left_s``: seconds until a standby may take over; negative if it may."""

    epoch: int
    holder: str
    address: str
    left_s: float


def held(connection: SqlConnection) -> Held:
    """Return who leads by the database's clock."""
    row = connection.execute(f"SELECT epoch, holder, address, until_unix_s - {NOW_UNIX_S} FROM leadership").fetchone()
    return Held(*row)


def take(connection: SqlConnection, holder: str, address: str) -> int | None:
    """Take the leadership if no one holds it; return the new epoch, or None.

    Ends the old leader's ledger connection first, whose transaction in progress holds the row: if the leader sleeps, it
    would hold it until it wakes up.
    """
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity, leadership"
        f" WHERE datname = current_database() AND application_name = ? AND until_unix_s < {NOW_UNIX_S}",
        (LEADER,),
    ).fetchall()
    row = connection.execute(
        f"UPDATE leadership SET epoch = epoch + 1, holder = ?, address = ?, until_unix_s = {NOW_UNIX_S} + ?"
        f" WHERE until_unix_s < {NOW_UNIX_S} RETURNING epoch",
        (holder, address, TTL_S),
    ).fetchone()
    return None if row is None else int(row[0])


def renew(connection: SqlConnection, epoch: int) -> bool:
    """Renew the leadership; return False if another coordinator leads."""
    changed = connection.execute(
        f"UPDATE leadership SET until_unix_s = {NOW_UNIX_S} + ? WHERE epoch = ?", (TTL_S, epoch)
    )
    return changed.rowcount == 1


def give_up(connection: SqlConnection, epoch: int) -> None:
    """End the leadership now, so that a standby need not wait for its time to be over."""
    connection.execute("UPDATE leadership SET until_unix_s = 0 WHERE epoch = ?", (epoch,))


class Leadership:
    """The leadership of this process, which a thread of its own renews.

    Args:
        epoch: the epoch in which this process leads.
    """

    def __init__(self, url: str, connection: PostgresConnection, epoch: int) -> None:
        self.epoch = epoch
        self._url = url
        self._connection: PostgresConnection | None = connection
        self._loop = asyncio.get_running_loop()
        self._ending = threading.Event()
        self.lost: asyncio.Future[LeadershipLost] = self._loop.create_future()
        self._thread = threading.Thread(target=self._renew, name="leadership", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Give the leadership up; if the database does not answer, it ends by itself."""
        self._ending.set()
        await asyncio.to_thread(self._thread.join, GIVE_UP_S)
        if (connection := self._connection) is not None:
            connection.interrupt()
        await asyncio.to_thread(self._thread.join)

    def _renew(self) -> None:
        logged = ""
        while not self._ending.wait(RENEW_S):
            try:
                if self._connection is None:
                    self._connection = connect(self._url)
                if not renew(self._connection, self.epoch):
                    self._step_down()
                    break
                logged = ""
            except errors().any as error:
                # The fence decides whether this process may write; the ledger's thread, for how long it tries.
                if (said := str(error).strip()) != logged:
                    _log.warning("the leadership was not renewed", error=said)
                logged = said
                self._close()
        with suppress(errors().any):
            if self._ending.is_set() and self._connection is not None:
                give_up(self._connection, self.epoch)
        self._close()

    def _step_down(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(_set, self.lost, lost_leadership())

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(errors().any):
                connection.close()


def _set(lost: asyncio.Future[LeadershipLost], error: LeadershipLost) -> None:
    if not lost.done():
        lost.set_result(error)


async def lead(
    url: str, holder: str, address: str, *, outage_max_s: float, check_standby: CheckStandby = lambda connection: True
) -> Leadership:
    """Create the tables if they are missing, wait until this process leads, and return its leadership.

    Args:
        check_standby: called while another coordinator leads, until it returns True: raises why this process could not
            take the run over.

    Raises:
        StoreError: the database did not answer for ``outage_max_s`` seconds, or refuses this user.
    """
    waiting = _Waiting(url, holder, address, check_standby)
    lost_since: float | None = None
    attempt: asyncio.Future[int | None] | None = None
    try:
        while True:
            try:
                attempt = asyncio.ensure_future(asyncio.to_thread(waiting.attempt))
                epoch = await asyncio.shield(attempt)
                lost_since = None
            except errors().any as error:
                now = asyncio.get_running_loop().time()
                if lost_since is None:
                    lost_since = now
                    _log.warning("waiting for the database", error=str(error).strip(), longest_s=outage_max_s)
                if not is_outage(error) or now - lost_since > outage_max_s:
                    raise store_error(error) from error
                waiting.close()
                epoch = None
            if epoch is not None and waiting.connection is not None:
                connection, waiting.connection = waiting.connection, None
                _log.info("this coordinator leads", epoch=epoch)
                return Leadership(url, connection, epoch)
            await asyncio.sleep(waiting.pause_s)
    finally:
        if attempt is not None and not attempt.done():
            waiting.interrupt()
            await asyncio.wait((attempt,))
        waiting.close()


class _Waiting:
    """A standby's connection, used by one thread at a time."""

    def __init__(self, url: str, holder: str, address: str, check_standby: CheckStandby) -> None:
        self._url = url
        self._check = check_standby
        self._is_checked = False
        self._names = (holder, address)
        self._said = ""
        self.connection: PostgresConnection | None = None
        self.pause_s = RENEW_S
        """Seconds until the next attempt: at most RENEW_S, less if the leader's time is over before."""

    def attempt(self) -> int | None:
        """Try once to lead."""
        self.pause_s = RENEW_S
        if self.connection is None:
            self.connection = connect(self._url)
            migrate(self.connection)
        epoch = take(self.connection, *self._names)
        if epoch is None:
            self._is_checked = self._is_checked or self._check(self.connection)
            now = held(self.connection)
            self.pause_s = min(RENEW_S, max(now.left_s, 0.0) + PAST_END_S)
            if now.holder != self._said:
                self._said = now.holder
                _log.info("standby: another coordinator leads", holder=now.holder, address=now.address, epoch=now.epoch)
        return epoch

    def interrupt(self) -> None:
        """End an attempt in progress; one to connect has a time limit."""
        if (connection := self.connection) is not None:
            connection.interrupt()

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(errors().any):
                connection.close()
