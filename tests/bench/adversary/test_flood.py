"""Test the parts of the flood that need no coordinator."""

from __future__ import annotations

import pytest

from bench import __main__ as main
from bench.adversary.flood import Window, _timed
from bench.adversary.hostile_sockets import CONNECTIONS


def test_the_command_floods_with_as_many_connections_as_it_says() -> None:
    assert f"{CONNECTIONS} hostile connections" in main.BENCHES["adversary"]["flood"]


@pytest.mark.parametrize(("error", "counts"), [(None, (1, 0)), (OSError(), (0, 1))])
async def test_requests_without_an_answer_are_counted(error: Exception | None, counts: tuple[int, int]) -> None:
    window = Window()
    async with _timed(window):
        if error is not None:
            raise error
    assert (len(window.answered_s), window.failed) == counts
