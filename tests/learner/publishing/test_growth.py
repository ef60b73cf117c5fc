from __future__ import annotations

import asyncio
import threading

import pytest

from learner.publishing.growth import Growth, Progress, Unsigned, Write, nothing_left
from rollcast.runtime.errors import RunFolderError
from rollcast.wire.ids import Version
from rollcast.wire.versions.tensors import tensor_table

TENSORS = tensor_table([("one", "uint8", (10,)), ("two", "uint8", (20,))])


def test_what_writes_a_version_reports_its_end() -> None:
    reported: list[int] = []

    def run(progress: Progress) -> None:
        progress(10)

    write = Write(TENSORS, run)
    assert write.size_bytes == 30
    write(reported.append)
    Write(TENSORS, nothing_left)(reported.append)
    assert reported == [10, 30, 30]


def test_a_reader_waits_for_the_bytes_that_it_needs() -> None:
    growth, read = Growth(), list[int]()

    def reader() -> None:
        for until_bytes in (10, 30):
            growth.wait(until_bytes)
            read.append(until_bytes)

    reading = threading.Thread(target=reader)
    reading.start()
    growth.reached(10)
    growth.wait(10)
    assert read in ([], [10])
    growth.reached(30)
    reading.join(10.0)
    assert read == [10, 30]
    assert growth.seconds > 0.0


def test_an_error_of_the_writer_reaches_those_who_need_more() -> None:
    growth = Growth()
    growth.reached(10)
    growth.failed(RunFolderError("the disk is full"))
    growth.wait(10)
    with pytest.raises(RunFolderError, match="full"):
        growth.wait(11)


def test_a_writer_that_is_held_back_stays_close_to_the_reader() -> None:
    growth, written = Growth(), list[int]()

    def write() -> None:
        for until_bytes in range(10, 60, 10):
            growth.reached(until_bytes)
            written.append(until_bytes)

    growth.hold_back(15)
    writing = threading.Thread(target=write)
    writing.start()
    for passed_bytes, most in ((0, 10), (5, 20), (20, 30)):
        growth.passed(passed_bytes)
        growth.wait(most + 10)
        assert written == list(range(10, most + 10, 10))
    growth.hold_back(None)
    writing.join(10.0)
    assert written == [10, 20, 30, 40, 50]


async def test_a_chunk_comes_once_it_is_written() -> None:
    growth, state = Growth(), bytes(range(25))
    unsigned = Unsigned(Version(3), state, 10, growth)
    assert unsigned.chunk_count == 3
    waiting = asyncio.create_task(unsigned.chunk(0))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    growth.reached(25)
    assert await waiting == state[:10]
    assert await unsigned.chunk(2) == state[20:]


async def test_a_chunk_that_is_never_written_raises_the_writers_error() -> None:
    growth = Growth()
    growth.reached(10)
    growth.failed(OSError("disk full"))
    unsigned = Unsigned(Version(3), bytes(25), 10, growth)
    assert await unsigned.chunk(0) == bytes(10)
    with pytest.raises(OSError, match="disk full"):
        await unsigned.chunk(1)
