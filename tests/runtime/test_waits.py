from __future__ import annotations

import asyncio
from itertools import islice
from random import Random

import pytest

from rollcast.runtime.errors import WaitTimedOut
from rollcast.runtime.waits import backoff_delays_s, deadline


async def test_deadline_names_what_it_waited_for() -> None:
    with pytest.raises(WaitTimedOut, match=r"waited 0.01 s for the moon"):
        async with deadline(0.01, "the moon"):
            await asyncio.Event().wait()


async def test_a_timeout_of_the_body_is_not_ours() -> None:
    with pytest.raises(TimeoutError) as caught:
        async with deadline(10.0, "the moon"):
            raise TimeoutError("somebody else's")
    assert not isinstance(caught.value, WaitTimedOut)


def test_backoff_is_jittered_under_a_rising_ceiling() -> None:
    delays = list(islice(backoff_delays_s(Random(1), first_s=0.1, most_s=1.0), 20))
    for index, delay in enumerate(delays):
        assert 0.0 <= delay <= min(1.0, 0.1 * 2**index)
    assert len(set(delays)) == 20
