"""Test that a pipe is read when a task asks for more, and together with what follows shortly."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from coordinator.workers.pipe_reader import PipeReader

TIMEOUT_S = 20.0


@pytest.fixture
def pipe() -> Iterator[tuple[PipeReader, int]]:
    reading, writing = os.pipe()
    reader = PipeReader(reading)
    yield reader, writing
    reader.close()


async def test_what_is_in_the_pipe_is_returned_without_a_turn_of_the_loop(pipe: tuple[PipeReader, int]) -> None:
    reader, writing = pipe
    os.write(writing, b"one\ntwo\n")
    with pytest.raises(StopIteration) as ended:
        reader.read(100).send(None)
    assert ended.value.value == b"one\ntwo\n"
    os.close(writing)
    assert await reader.read(100) == b"", "the end"


async def test_a_reader_waits_for_the_first_bytes_and_gathers_those_that_follow(pipe: tuple[PipeReader, int]) -> None:
    reader, writing = pipe
    reading = asyncio.create_task(reader.read(100, gather_s=0.2))
    await asyncio.sleep(0)
    assert not reading.done()
    os.write(writing, b"one\n")
    asyncio.get_running_loop().call_later(0.05, os.write, writing, b"two\n")
    assert await asyncio.wait_for(reading, TIMEOUT_S) == b"one\ntwo\n"
    os.close(writing)


async def test_a_cancelled_read_leaves_the_pipe_to_the_next_one(pipe: tuple[PipeReader, int]) -> None:
    reader, writing = pipe
    reading = asyncio.create_task(reader.read(100))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    os.write(writing, b"one\n")
    assert await asyncio.wait_for(reader.read(100), TIMEOUT_S) == b"one\n"
    os.close(writing)
