"""Test that providers' commands are bounded in time and output, and that tags are parsed as they were formatted."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.providers.base import RUN_ID, WORKER_ID, WorkerTag
from capacity.providers.commands import OUTPUT_BYTES_MAX, Done, run_command
from rollcast.runtime.errors import ProviderFailed


async def test_input_goes_in_and_output_comes_out() -> None:
    done = await run_command(
        ["sh", "-c", "cat; echo oh >&2; echo $X; exit 3"], b"in", deadline_s=10, environment={"X": "y"}
    )
    assert done == Done(3, b"iny\n", b"oh\n")


async def test_a_missing_program_is_reported() -> None:
    with pytest.raises(ProviderFailed, match="cannot run no-such-program"):
        await run_command(["no-such-program"], deadline_s=10)


async def test_what_takes_too_long_is_killed() -> None:
    began = time.monotonic()
    with pytest.raises(ProviderFailed, match=r"took longer than 0\.2 s"):
        await run_command(["sleep", "60"], deadline_s=0.2)
    assert time.monotonic() - began < 10


async def test_a_command_that_prints_too_much_is_killed() -> None:
    with pytest.raises(ProviderFailed, match=str(OUTPUT_BYTES_MAX)):
        await run_command([sys.executable, "-c", "while True: print('y' * 99999)"], deadline_s=30)


async def test_a_cancelled_command_is_killed() -> None:
    task = asyncio.create_task(run_command(["sleep", "60"], deadline_s=60))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_input_that_is_not_read_does_no_harm() -> None:
    assert (await run_command(["true"], b"x" * 1_000_000, deadline_s=10)).status == 0


def test_last_words_are_one_short_line() -> None:
    assert Done(1, b"out", b"\x1b[31ma\n\nb\x00").last_words() == "[31ma b"
    assert Done(1, b"out\n", b"").last_words() == "out"
    assert len(Done(1, b"", b"x" * 10_000).last_words()) == 600


@given(st.from_regex(RUN_ID, fullmatch=True), st.from_regex(WORKER_ID, fullmatch=True), st.integers(1, 999_999))
def test_a_tag_survives_being_written(run_id: str, worker_id: str, incarnation: int) -> None:
    if run_id.isascii() and worker_id.isascii():
        tag = WorkerTag(run_id, worker_id, incarnation)
        assert WorkerTag.parse(str(tag)) == tag


@pytest.mark.parametrize("text", ["", "run", "run.w", "run.w.0", "run.w.01", "run.W.1", "run.-w.1", ".w.1", "r/n.w.1"])
def test_other_texts_are_no_tags(text: str) -> None:
    with pytest.raises(ValueError, match=r"tag|incarnation"):
        WorkerTag.parse(text)
