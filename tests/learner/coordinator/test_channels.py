from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learner.coordinator.channels import Channels
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
