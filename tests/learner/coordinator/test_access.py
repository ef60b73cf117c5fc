from __future__ import annotations

import asyncio

import pytest

from learner.coordinator.access import Access
from rollcast.runtime.errors import JoinRefused, Unreachable
from rollcast.wire.joining.enrol import Enrolment
from tests.learner.scripted_run import Authority


def place(authority: Authority, lifetime_s: float) -> Enrolment:
    return authority.enrolment("127.0.0.1:1", lifetime_s=lifetime_s)


async def test_a_young_certificate_is_kept(authority: Authority) -> None:
    async def enrol() -> Enrolment:
        raise AssertionError("renewed too early")

    for lifetime_s in (60.0, 3600.0):
        first = place(authority, lifetime_s)
        assert await Access(first, enrol).fresh() is first


async def test_an_old_certificate_is_renewed_once_for_all_who_ask(authority: Authority) -> None:
    second, asked = place(authority, 3600.0), list[int]()

    async def enrol() -> Enrolment:
        asked.append(1)
        await asyncio.sleep(0)
        return second

    access = Access(place(authority, 0.0), enrol)
    assert await asyncio.gather(*(access.fresh() for _ in range(5))) == [second] * 5
    assert asked == [1]


async def test_while_it_is_valid_a_certificate_that_cannot_be_renewed_will_do(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def enrol() -> Enrolment:
        raise JoinRefused("the invite has expired")

    first = place(authority, 3600.0)
    access = Access(first, enrol)
    monkeypatch.setattr(access, "_renew_below_s", 1e9)  # as if most of its life were over
    assert await access.fresh() is first


async def test_without_a_valid_certificate_the_error_is_passed_on(authority: Authority) -> None:
    async def enrol() -> Enrolment:
        raise Unreachable("cannot reach the coordinator")

    with pytest.raises(Unreachable):
        await Access(place(authority, 0.0), enrol).fresh()
