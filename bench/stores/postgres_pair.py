"""Run two real PostgreSQL servers, of which one follows the other synchronously, and let them change places."""

from __future__ import annotations

import time
from types import TracebackType

from bench.stores.postgres_server import START_TIMEOUT_S, PostgresServer
from rollcast.runtime.errors import WaitTimedOut

POLL_S = 0.02


class PostgresPair:
    """A primary that commits only what its standby has on disk too, as Patroni keeps it in synchronous mode."""

    def __init__(self) -> None:
        self._primary = PostgresServer(durable=True)
        self._standby = PostgresServer(durable=True)

    def __enter__(self) -> PostgresPair:
        self._primary.start()
        self.restore()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in (self._primary, self._standby):
            server.__exit__(kind, error, trace)

    def create(self, database: str) -> str:
        """Create an empty database, and return the URL that leads to whichever server is the primary."""
        self._primary.create(database)
        hosts = f"{self._primary.folder},{self._standby.folder}"
        return f"postgresql://postgres@/{database}?host={hosts}&target_session_attrs=read-write"

    def kill_primary(self) -> None:
        """Kill the primary without a shutdown."""
        self._primary.kill()

    def promote(self) -> None:
        """Let the standby take the killed primary's place; until ``restore`` it commits alone, as under Patroni."""
        self._primary, self._standby = self._standby, self._primary
        self._primary.promote()
        self._synchronous("")

    def restore(self) -> None:
        """Let the server that is down follow the primary, and wait until each commit waits for it.

        Raises:
            WaitTimedOut: it does not follow.
        """
        self._standby.follow(self._primary)
        self._synchronous("*")
        end_s = time.monotonic() + START_TIMEOUT_S
        while self._primary.sql("SELECT sync_state FROM pg_stat_replication") != "sync":
            if time.monotonic() > end_s:
                raise WaitTimedOut(f"no PostgreSQL follows the other one after {START_TIMEOUT_S:g} s")
            time.sleep(POLL_S)

    def _synchronous(self, names: str) -> None:
        self._primary.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self._primary.sql("SELECT pg_reload_conf()")
