"""Test under which conditions uploads are refused, and what a person is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from coordinator.shell.upload_refusal import Refusal, UploadRefusal


def refusal(*, full: bool = False, reached: bool = True, busy: bool = False, shared: bool = False) -> Refusal | None:
    disk, store, loop = SimpleNamespace(refusing=full), SimpleNamespace(is_reached=reached), SimpleNamespace(sheds=busy)
    return UploadRefusal(Path("/run"), disk, store, loop, shared).now()


def test_each_condition_alone_refuses_and_none_does_not() -> None:
    assert refusal() is None
    full, unreached, busy = refusal(full=True), refusal(reached=False), refusal(busy=True)
    assert full is not None
    assert full.why == "the disk of /run is almost full"
    assert unreached is not None
    assert "disk of the run folder" in unreached.fix
    assert busy is not None
    assert busy.why == "this coordinator is too busy"


def test_the_condition_that_causes_others_is_named_first() -> None:
    assert refusal(full=True, reached=False, busy=True) == refusal(full=True)
    assert refusal(reached=False, busy=True) == refusal(reached=False)
    shared = refusal(reached=False, shared=True)
    assert shared is not None
    assert "database of store.url" in shared.fix
