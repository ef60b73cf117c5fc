"""Call the planner's commands in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from rollcast.cli.main import app


@dataclass(frozen=True, slots=True)
class Called:
    """The result of a command: exit status and output."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Return the output, which must be exactly one JSON object."""
        document: dict[str, Any] = json.loads(self.out)
        return document


def call(capsys: pytest.CaptureFixture[str], *words: str) -> Called:
    """Call `rollcast capacity ...`; its errors are raised."""
    capsys.readouterr()
    found = app(["capacity", *words], exit_on_error=False, result_action="return_value")
    captured = capsys.readouterr()
    return Called(int(found or 0), captured.out, captured.err)
