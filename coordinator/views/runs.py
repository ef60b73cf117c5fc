"""Read the steps of this run, and of runs in neighbouring folders, from their metrics.jsonl.

This reads files, so it must not run on the event loop. A page names the run to read: a name must be one plain
path component, and must lead to a real folder, not a link, so that no request reads files elsewhere.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from coordinator.core.members.mismatch import KL_KEY
from rollcast.runtime.errors import MalformedMessage, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.runtime.steps_file import StepsFile, last_step

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
RUNS_SHOWN_MAX = 200
POINTS_MAX = 10_000
COLUMNS_MAX = 256
WORST_PEER = "kl_k3_worst_peer"
FILES_KEPT = 4  # other runs whose steps stay in memory


@dataclass(frozen=True, slots=True)
class RunView:
    """One run. ``steps`` is its newest recorded step, ``began_unix_s`` the time of the oldest file in its folder."""

    name: str
    current: bool
    steps: int
    began_unix_s: float


@dataclass(frozen=True, slots=True)
class RunsView:
    """Runs, newest first."""

    runs: tuple[RunView, ...]


@dataclass(frozen=True, slots=True)
class StepsView:
    """Steps as rows of ``columns``, as metrics.jsonl has them (docs/metrics.md); None where a step lacks a figure.

    Figures of single peers are left out, except the worst k3-KL: ``kl_k3_worst`` and ``kl_k3_worst_peer``, its id, with
    ``kl_k3_worst_name``, its name, where that is known.
    One of ``every`` steps is included, and always the newest.
    """

    run: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    every: int = 1


def steps_view(run: str, steps: Sequence[dict[str, Any]], *, from_step: int = 0, points: int = 2000) -> StepsView:
    """Return the steps from ``from_step`` on, thinned to about ``points`` rows."""
    wanted = [one for one in steps if one["step"] >= from_step]
    every = max(1, -(-len(wanted) // max(1, min(points, POINTS_MAX))))
    thinned = [one for number, one in enumerate(wanted, 1) if number % every == 0 or number == len(wanted)]
    kept = [{**one, **_worst_kl(one)} for one in thinned]
    columns = tuple(dict.fromkeys(name for one in kept for name in one if ":" not in name))[:COLUMNS_MAX]
    return StepsView(run, columns, tuple(tuple(one.get(name) for name in columns) for one in kept), every)


def _worst_kl(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the k3-KL and id of the peer that differs most from the learner; empty if the step names no peer."""
    by_peer = {name.removeprefix(KL_KEY): value for name, value in step.items() if name.startswith(KL_KEY)}
    known = {peer: value for peer, value in by_peer.items() if isinstance(value, int | float)}
    if not known:
        return {}
    worst = max(known, key=lambda peer: known[peer])
    return {"kl_k3_worst": known[worst], WORST_PEER: worst}


def with_names(view: StepsView, names_of: Callable[[Collection[str]], Mapping[str, str]]) -> StepsView:
    """Return the steps with the name of each step's worst peer, as far as ``names_of`` these ids knows them."""
    if WORST_PEER not in view.columns:
        return view
    place = view.columns.index(WORST_PEER)
    names = names_of({row[place] for row in view.rows} - {None})
    rows = tuple((*row, names.get(row[place])) for row in view.rows)
    return replace(view, columns=(*view.columns, "kl_k3_worst_name"), rows=rows)


class Runs:
    """Reads this run's folder and the neighbouring ones. Several threads may call it at once."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._own = StepsFile(folder.metrics)
        self._told = 0
        self._others: OrderedDict[str, StepsFile] = OrderedDict()
        self._lock = Lock()

    @property
    def own_name(self) -> str:
        """Name of this run's folder."""
        return self._folder.root.resolve().name

    def new_steps(self) -> list[dict[str, Any]]:
        """Return the steps of this run that were recorded since the last call.

        Raises:
            StoreError: the steps cannot be read.
        """
        with self._lock:
            self._own.refresh()
            added, self._told = self._own.steps[self._told :], len(self._own.steps)
        return added

    def steps(self, name: str, *, from_step: int, points: int) -> StepsView:
        """Return the steps of a run from ``from_step`` on, thinned to about ``points``; an empty name means this run.

        Raises:
            MalformedMessage: no run with this name is in the folder of runs.
            StoreError: its steps cannot be read.
        """
        with self._lock:
            name = name or self.own_name
            file = self._own if name == self.own_name else self._file_of(name)
            file.refresh()
            return steps_view(name, file.steps, from_step=from_step, points=points)

    def _file_of(self, name: str) -> StepsFile:
        path = self._path_of(name)
        file = self._others.pop(name, None) or StepsFile(path)
        self._others[name] = file
        while len(self._others) > FILES_KEPT:
            self._others.popitem(last=False)
        return file

    def _path_of(self, name: str) -> Path:
        """Return metrics.jsonl of the run with this name: a folder next to this run's, without links or ".."."""
        parent = self._folder.root.resolve().parent
        path = parent / name / self._own.path.name
        if NAME.fullmatch(name) is None or not _is_plain(path.parent, path):
            raise MalformedMessage("no run with this name is in the folder of runs", fix="see /api/v1/runs")
        return path

    def runs(self) -> RunsView:
        """Return this run, then those in neighbouring folders from the newest, RUNS_SHOWN_MAX at most.

        Raises:
            StoreError: the folder of runs cannot be read.
        """
        root = self._folder.root.resolve()
        try:
            names = [one.name for one in root.parent.iterdir() if NAME.fullmatch(one.name)]
        except OSError as error:
            raise StoreError(f"cannot list the runs in {root.parent}", cause=str(error)) from None
        found = [view for name in names if (view := self._run(root, name)) is not None]
        found.sort(key=lambda one: (not one.current, -one.began_unix_s))
        return RunsView(tuple(found[:RUNS_SHOWN_MAX]))

    def _run(self, root: Path, name: str) -> RunView | None:
        path = root.parent / name / self._own.path.name
        if name != root.name and not _is_plain(path.parent, path):
            return None
        try:
            return RunView(name, name == root.name, last_step(path) or 0, _began(path.parent))
        except OSError:  # it is being deleted
            return None


def _is_plain(folder: Path, file: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and file.is_file() and not file.is_symlink()


def _began(folder: Path) -> float:
    return min((one.stat().st_mtime for one in folder.iterdir()), default=folder.stat().st_mtime)
