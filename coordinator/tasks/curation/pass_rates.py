"""Read how often problems were solved: from recorded samples, a run's ledger, or a profile kept in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.stores.reader import reading
from coordinator.tasks.checks.task import Problem
from coordinator.tasks.curation.ngrams import hash64, words_of
from rollcast.runtime.errors import TaskError
from rollcast.runtime.run_folder import RunFolder

LINE_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class PassRate:
    """The number of a problem's completions, and the sum of their rewards."""

    samples: int
    right: float

    @property
    def share(self) -> float:
        return self.right / self.samples

    def __add__(self, other: PassRate) -> PassRate:
        return PassRate(self.samples + other.samples, self.right + other.right)


def key_of(prompt: str) -> int:
    """Return the key under which a prompt's pass rate is stored."""
    return hash64(" ".join(words_of(prompt)))


def read_samples(path: Path) -> dict[int, PassRate]:
    """Return pass rates by key from a file of samples, one JSON object per line.

    A line has {"prompt", "exact" or "reward"} or {"prompt", "pass_rate"}; `rollcast samples RUN --json` writes such.

    Raises:
        TaskError: the file cannot be read; names the line.
    """
    rates: dict[int, PassRate] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), start=1):
                if line.strip():
                    prompt, rate = _sample(line, f"{path}, line {number}")
                    _count(rates, key_of(prompt), rate)
    except OSError as error:
        raise TaskError(f"cannot read the samples {path}", cause=str(error), fix="correct --pass-rates") from None
    return rates


def _sample(line: bytes, where: str) -> tuple[str, PassRate]:
    try:
        value: Any = json.loads(line)
        prompt = value["prompt"]
        if "pass_rate" in value:
            samples = int(value.get("samples", 1))
            return str(prompt), PassRate(samples, float(value["pass_rate"]) * samples)
        right = float(value["exact"] if "exact" in value else value["reward"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TaskError(
            f"{where}: not a sample",
            cause=f"{type(error).__name__}: {error}",
            fix='write {"prompt": "...", "exact": true}, {"prompt": "...", "reward": 0.5} or {"prompt": "...", '
            '"pass_rate": 0.25}',
        ) from None
    return str(prompt), PassRate(1, right)


def read_run(folder: RunFolder) -> dict[int, PassRate]:
    """Return pass rates by key of every problem whose scores are still in a run's ledger.

    Raises:
        StoreError: the ledger cannot be read.
    """
    rates: dict[int, PassRate] = {}
    with reading(folder) as connection:
        rows = connection.execute(
            "SELECT problem, count(*), sum(reward) FROM scores JOIN rollouts USING (rollout_id)"
            " JOIN attempts USING (lease_id, sample_index) JOIN groups USING (group_id) GROUP BY groups.group_id"
        )
        for problem_json, samples, right in rows:
            _count(rates, key_of(Problem.from_json(problem_json).prompt), PassRate(samples, right))
    return rates


def _count(rates: dict[int, PassRate], key: int, rate: PassRate) -> None:
    before = rates.get(key)
    rates[key] = rate if before is None else before + rate


class ProfileFile:
    """Measured pass rates, written to disk as they come, so that an interrupted profiling can be resumed.

    Args:
        settings: what the pass rates depend on; a file made with other settings is refused.

    Raises:
        TaskError: the file belongs to another profiling, or cannot be read.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path = path
        self._rates: dict[int, PassRate] = {}
        self._settings = json.loads(json.dumps(settings))
        if path.exists():
            self._load()
        else:
            self._append([self._settings])

    def __len__(self) -> int:
        return len(self._rates)

    def get(self, key: int) -> PassRate | None:
        """Return the measured pass rate of a problem; None if it was not measured."""
        return self._rates.get(key)

    def add(self, rates: Iterable[tuple[int, PassRate]]) -> None:
        """Store pass rates durably.

        Raises:
            TaskError: the file cannot be written.
        """
        new = list(rates)
        self._append([[key, rate.samples, rate.right] for key, rate in new])
        self._rates.update(new)

    def _load(self) -> None:
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]  # a line cut short by a crash is measured again
        try:
            head, *lines = [json.loads(line) for line in whole.splitlines()]
            self._rates = {int(key): PassRate(int(samples), float(right)) for key, samples, right in lines}
        except (ValueError, TypeError) as error:
            raise TaskError(f"cannot read the profile {self._path}", cause=str(error), fix="delete it") from None
        if head != self._settings:
            raise TaskError(
                f"the profile {self._path} was made with other settings",
                cause=f"{head}, not {self._settings}",
                fix="delete it to profile anew, or choose another --out",
            )
        if len(whole) != len(data):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))

    def _append(self, lines: Iterable[Any]) -> None:
        try:
            with self._path.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise TaskError(f"cannot write the profile {self._path}", cause=str(error)) from None
