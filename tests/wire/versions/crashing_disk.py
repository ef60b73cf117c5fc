"""Run a process that dies in the middle of its work on the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Crash(BaseException):
    """The death of the process: no code runs after it, and no handler catches it."""


@contextmanager
def crash_after(calls_most: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make calls of these functions of os raise Crash after the first ``calls_most``, while the body runs."""
    calls = 0

    def crashing(name: str) -> None:
        original = getattr(os, name)

        def call(*args: object, **keywords: object) -> object:
            nonlocal calls
            calls += 1
            if calls > calls_most:
                raise Crash
            return original(*args, **keywords)

        context.setattr(os, name, call)

    with monkeypatch.context() as context:
        for name in names:
            crashing(name)
        yield
