"""Check what every provider must do; each provider's test module calls ``check`` with a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from capacity.providers.base import Provider, WorkerTag
from rollcast.runtime.errors import ProviderFailed

DEADLINE_S = 30.0
INVITE = "rollcast1-" + "secret" * 20


@dataclass(frozen=True)
class Setting:
    """Two providers over the same workers: the second stands for the one of a restarted coordinator."""

    provider: Provider
    again: Provider
    saw: Callable[[WorkerTag], str]
    """Returns the invite that the worker of this tag received; fails until the worker runs."""


async def running(provider: Provider, run_id: str) -> list[str]:
    listing = await provider.list(run_id, deadline_s=DEADLINE_S)
    assert not listing.silent
    return sorted(str(one.tag) for one in listing.running)


async def check(setting: Setting) -> None:
    """Check the whole contract with few workers, because each start of a real one takes a while."""
    provider = setting.provider
    offers = await provider.offers(deadline_s=DEADLINE_S)
    ids = [offer.worker.worker_id for offer in offers]
    assert len(ids) >= 2
    assert len(set(ids)) == len(ids)
    assert {offer.worker.provider for offer in offers} == {provider.name}
    assert all(offer.tail_s > 0 and offer.granularity_s > 0 for offer in offers)
    first, second = WorkerTag("run-1", ids[0], 1), WorkerTag("run-1", ids[1], 1)
    assert await running(provider, "run-1") == []
    await check_start(setting, first)
    await provider.start(second, INVITE, deadline_s=DEADLINE_S)
    assert await running(setting.again, "run-1") == sorted([str(first), str(second)])
    assert await running(provider, "run") == []
    await check_stop(setting, first, second)
    await check_stopped_before_start(provider, WorkerTag("run-1", ids[0], 2))
    await provider.stop(second, deadline_s=DEADLINE_S)
    assert await running(provider, "run-1") == []
    await provider.close()
    await setting.again.close()


async def check_start(setting: Setting, tag: WorkerTag) -> None:
    """Check that one worker runs and has the invite, however often and through whichever provider it is started."""
    found = await setting.provider.start(tag, INVITE, deadline_s=DEADLINE_S)
    assert found.tag == tag
    assert found.where
    assert INVITE not in found.where
    assert (await setting.again.start(tag, "another invite", deadline_s=DEADLINE_S)).where == found.where
    assert await running(setting.provider, tag.run_id) == [str(tag)]
    async with asyncio.timeout(DEADLINE_S):
        while setting.saw(tag) != INVITE:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)


async def check_stop(setting: Setting, tag: WorkerTag, other: WorkerTag) -> None:
    """Check that a worker started through the other provider can be stopped, twice, and never starts again."""
    await setting.again.stop(tag, deadline_s=DEADLINE_S)
    assert await running(setting.provider, tag.run_id) == [str(other)]
    await setting.provider.stop(tag, deadline_s=DEADLINE_S)
    with pytest.raises(ProviderFailed):
        await setting.provider.start(tag, INVITE, deadline_s=DEADLINE_S)
    assert await running(setting.provider, tag.run_id) == [str(other)]


async def check_stopped_before_start(provider: Provider, tag: WorkerTag) -> None:
    """Check that a start which arrives after its stop has no effect."""
    await provider.stop(tag, deadline_s=DEADLINE_S)
    with pytest.raises(ProviderFailed):
        await provider.start(tag, INVITE, deadline_s=DEADLINE_S)
