"""Test the learner's channels to the coordinator and the origin, and its access to the run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learner.coordinator.access import Access
from learner.coordinator.channels import Channels
from rollcast.runtime.errors import JoinRefused, Unreachable
from rollcast.wire.joining.enrol import Enrolment
from tests.learner.scripted_run import LOOPBACK, Authority


@pytest.fixture
def place(tmp_path: Path) -> Enrolment:
    return replace(Authority(tmp_path).enrolment(f"{LOOPBACK}:1"), further=(f"{LOOPBACK}:2",))


async def used(channels: Channels, failures: int) -> list[Any]:
    found = [channels.stub]
    for _ in range(failures):
        channels.failed(channels.stub, refused=False)
        found.append(channels.stub)
    return found


async def test_addresses_take_turns_and_one_that_answered_gets_a_second_try(place: Enrolment) -> None:
    channels = Channels()
    assert channels.stub is None
    channels.connect(place)
    first, second, again = await used(channels, 2)
    assert again is first is not second
    channels.answered()
    assert await used(channels, 2) == [first, first, second]
    await channels.close()


async def test_calls_that_fail_together_count_once(place: Enrolment) -> None:
    channels = Channels()
    channels.connect(place)
    first = channels.stub
    channels.failed(first, refused=False)
    second = channels.stub
    channels.failed(first, refused=False)
    assert channels.stub is second is not first
    await channels.close()


async def test_all_refuse_once_each_does(place: Enrolment) -> None:
    channels = Channels()
    channels.connect(place)
    channels.failed(channels.stub, refused=True)
    assert not channels.all_refuse
    channels.failed(channels.stub, refused=True)
    assert channels.all_refuse
    channels.answered()
    assert not channels.all_refuse
    await channels.close()


async def test_another_certificate_takes_another_channel(place: Enrolment) -> None:
    channels = Channels()
    channels.connect(place)
    before = channels.stub
    channels.connect(place)
    assert channels.stub is before
    channels.connect(replace(place))
    assert channels.stub is not before
    await channels.close()


def enrolled_place(authority: Authority, lifetime_s: float) -> Enrolment:
    return authority.enrolment("127.0.0.1:1", lifetime_s=lifetime_s)


async def test_a_young_certificate_is_kept(authority: Authority) -> None:
    async def enrol() -> Enrolment:
        raise AssertionError("renewed too early")

    for lifetime_s in (60.0, 3600.0):
        first = enrolled_place(authority, lifetime_s)
        assert await Access(first, enrol).fresh() is first


async def test_an_old_certificate_is_renewed_once_for_all_callers(authority: Authority) -> None:
    second, asked = enrolled_place(authority, 3600.0), list[int]()

    async def enrol() -> Enrolment:
        asked.append(1)
        await asyncio.sleep(0)
        return second

    access = Access(enrolled_place(authority, 0.0), enrol)
    assert await asyncio.gather(*(access.fresh() for _ in range(5))) == [second] * 5
    assert asked == [1]


async def test_while_it_is_valid_a_certificate_that_cannot_be_renewed_will_do(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def enrol() -> Enrolment:
        raise JoinRefused("the invite has expired")

    first = enrolled_place(authority, 3600.0)
    access = Access(first, enrol)
    monkeypatch.setattr(access, "_renew_below_s", 1e9)  # as if most of its life were over
    assert await access.fresh() is first


async def test_without_a_valid_certificate_the_error_is_passed_on(authority: Authority) -> None:
    async def enrol() -> Enrolment:
        raise Unreachable("cannot reach the coordinator")

    with pytest.raises(Unreachable):
        await Access(enrolled_place(authority, 0.0), enrol).fresh()
