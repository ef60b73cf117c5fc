"""Share one browser among all tests of pages in this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from tests.browsing import chromium


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def browser() -> AsyncIterator[Any]:
    async with chromium() as started:
        yield started
