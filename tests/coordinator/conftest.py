"""Stop the PostgreSQL server that tests of these folders started."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.coordinator.stores.postgres_fixtures import server


@pytest.fixture(scope="session", autouse=True)
def _stopped_server() -> Iterator[None]:
    yield
    if server.cache_info().currsize:
        server().__exit__(None, None, None)
