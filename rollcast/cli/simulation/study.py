"""`rollcast study`: simulate many fleets and compare them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from rollcast.cli.options import Json
from rollcast.runtime import charts
from rollcast.runtime.errors import ConfigError

if TYPE_CHECKING:
    from rollcast.sim.scale import ScalePoint

EXIT_VIOLATED = 1
USD_PER_PEER_HOUR = 0.40
"""Of a peer while it runs, unless another price is given: a rented RTX 4090 (capacity/catalogue/data/prices)."""

_REPORT_EVERY_S = 30.0

app = App(name="study", help="Simulate many fleets and compare them.", help_format="plaintext")


@app.command
def scale(
    *,
    peers: str = "100,1000",
    churn: str = "1,4,16",
    minutes: float = 30.0,
    warm_up_minutes: float = 10.0,
    seed: int = 0,
    spot: Path | None = None,
    usd_per_hour: float = USD_PER_PEER_HOUR,
    processes: int | None = None,
    results: Path | None = None,
    plot: Path | None = None,
    compiled: Annotated[bool, Parameter(negative=())] = False,
    json_output: Json = False,
) -> int:
    """Simulate fleets of several sizes and rates of churn, and show where the learner or the coordinator falls behind.

    The cores are the real ones on virtual time. Each fleet is a quarter larger than its learner needs. The exit status
    is 1 if an invariant was violated.

    Parameters
    ----------
    peers
        Numbers of peers, separated by commas.
    churn
        Preemptions of each peer in multiples of 0.1 per hour, separated by commas.
    minutes
        Virtual minutes to measure.
    warm_up_minutes
        Virtual minutes of warm-up before the measurement.
    seed
        Seed of all random choices.
    spot
        Take peers away and give them back as this record of a spot market does: a CSV file with rows of milliseconds
        and instances alive, as in bench/capacity/data.
    usd_per_hour
        Price of a peer for each hour that it runs.
    processes
        Most fleets that are simulated at once, each in a process of its own; by default as many as there are cores.
    results
        Append each result to this file, and take from it what an earlier study has found already.
    plot
        Write a plot to this file, PNG or SVG: of these fleets, and of all others that the file of results has.
    compiled
        Use the cores that `make compiled` compiled in this checkout; the core's times are then shorter than a
        coordinator's, and everything else is the same.
    json_output
        Print one JSON object.
    """
    sizes, rates = _sizes(peers), _numbers("--churn", churn)
    if min(minutes, warm_up_minutes) <= 0.0:
        raise ConfigError("--minutes and --warm-up-minutes must be above 0", fix="give more time")
    if usd_per_hour < 0.0 or (processes is not None and processes < 1):
        raise ConfigError("--usd-per-hour must not be below 0, nor --processes below 1", fix="give another number")
    if plot is not None:
        charts.check_path(plot)
    if compiled:
        from rollcast.sim.compiled import check

        check()
    from rollcast.sim.parallel import cores, documents
    from rollcast.sim.scale import ScalePoint, command, read_spot  # the simulator imports every role

    trace = "" if spot is None else read_spot(spot).name
    known = {} if results is None else _read(results)
    fixed: dict[str, Any] = {"minutes": minutes, "warm_up_minutes": warm_up_minutes, "seed": seed}
    cells = [(size, rate) for size in sizes for rate in rates]
    cores_used = ["compiled"] if compiled else []  # their times differ
    keys = {cell: json.dumps([*cell, trace, usd_per_hour, *fixed.values(), *cores_used]) for cell in cells}
    missing = [cell for cell in cells if keys[cell] not in known]
    commands = [command(*cell, **fixed, spot=spot, usd=usd_per_hour, with_compiled=compiled) for cell in missing]
    at_once = processes or cores()
    sys.stderr.write(f"simulating {len(missing)} fleet{'s' * (len(missing) != 1)}, at most {at_once} at once\n")
    for cell, found in zip(missing, documents(commands, at_once, _Progress(missing)), strict=True):
        sys.stderr.write(f"simulated {cell[0]} peers at churn {cell[1]:g}\n")
        known[keys[cell]] = ScalePoint(**found)
        if results is not None:
            _append(results, keys[cell], found)
    points = [known[keys[cell]] for cell in cells]
    if plot is not None:
        _draw(list(known.values()), plot)
    _show(points, as_json=json_output)
    return EXIT_VIOLATED if any(point.violations for point in points) else 0


class _Progress:
    """Prints once in a while how far each fleet is: large ones take hours.

    Args:
        cells: number of peers and churn of each fleet.
    """

    def __init__(self, cells: Sequence[tuple[int, float]], now: Callable[[], float] = time.monotonic) -> None:
        self._cells = cells
        self._now = now
        self._reported_s = dict.fromkeys(cells, now())

    def __call__(self, place: int, share: float) -> None:
        cell, now_s = self._cells[place], self._now()
        if now_s - self._reported_s[cell] >= _REPORT_EVERY_S:
            self._reported_s[cell] = now_s
            sys.stderr.write(f"{cell[0]} peers at churn {cell[1]:g}: {share:.0%}\n")


def _read(results: Path) -> dict[str, ScalePoint]:
    from rollcast.sim.scale import ScalePoint

    try:
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
        return {one["cell"]: ScalePoint(**one["point"]) for one in map(json.loads, lines)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"cannot read the results {results}", cause=str(error), fix="name another file, or one of this version"
        ) from None


def _append(results: Path, cell: str, point: Mapping[str, Any]) -> None:
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"cell": cell, "point": point}) + "\n")


def _sizes(text: str) -> list[int]:
    sizes = _numbers("--peers", text)
    if any(size < 1 or size != int(size) for size in sizes):
        raise ConfigError(f"--peers {text}: each number must be whole and above 0", fix="write --peers 100,1000")
    return [int(size) for size in sizes]


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1.0]
    if not all(0.0 <= number < 1e7 for number in numbers):
        raise ConfigError(f"{option} {text} is no list of numbers", fix=f"write {option} 100,1000")
    return numbers


_COLUMNS: Mapping[str, Callable[[ScalePoint], str]] = {
    "peers": lambda one: f"{one.peers}",
    "churn": lambda one: f"{one.churn:g}",
    "busy": lambda one: f"{one.utilisation:.1%}",
    "dropped": lambda one: f"{one.dropped_share:.1%}",
    "age": lambda one: f"{one.age_mean:.1f}/{one.staleness_limit}",
    "T_bcast": lambda one: f"{one.t_bcast_p95_s:.1f} s",
    "origin": lambda one: f"{one.origin_copies:.1f}",
    "core": lambda one: f"{one.core_share:.2%}",
    "longest": lambda one: f"{one.core_block_ms_max:.0f} ms",
    "$/1k": lambda one: f"{one.usd_per_kilo_rollout:.2f}",
}


def _show(points: Sequence[ScalePoint], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"points": [point.to_json() for point in points]}, indent=2))
        return
    from rollcast.sim.scale import PREEMPTIONS_PER_HOUR

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for point in points:
        table.add_row(*(text(point) for text in _COLUMNS.values()))
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"A churn of 1 is {PREEMPTIONS_PER_HOUR:g} preemptions of each peer an hour. T_bcast is its 95th percentile, "
        "`origin` the copies of each version that the origin sends at least. `core` is the coordinator's core alone: "
        "connections, encryption and the ledger come on top. `$/1k` is the price of 1,000 accepted rollouts."
    )
    for point in points:
        if point.violations:
            console.print(f"[red]{point.violations} violated invariants with {point.peers} peers[/red]")


#: Name of a panel's axis, and what it shows.
_PANELS: Mapping[str, Callable[[ScalePoint], float]] = {
    "learner busy": lambda one: one.utilisation,
    "too old, %": lambda one: 100.0 * one.dropped_share,
    "mean age, steps": lambda one: one.age_mean,
    "T_bcast p95, s": lambda one: one.t_bcast_p95_s,
    "core, CPUs": lambda one: one.core_share,
    "longest event, ms": lambda one: one.core_block_ms_max,
    "$ per 1,000 rollouts": lambda one: one.usd_per_kilo_rollout,
}


def _draw(points: Sequence[ScalePoint], path: Path) -> None:
    rates = sorted({point.churn for point in points})
    figure, panels = charts.new_panels("Runs of growing fleets", "simulated, with the real cores", len(_PANELS))
    for axes, (name, value) in zip(panels, _PANELS.items(), strict=True):
        for number, rate in enumerate(rates):
            mine = sorted((point for point in points if point.churn == rate), key=lambda point: point.peers)
            sizes, style = [point.peers for point in mine], charts.series_style(number, len(rates))
            axes.plot(sizes, [value(point) for point in mine], label=f"churn x {rate:g}", **style)
        axes.set_ylabel(name)
        charts.scale_to(axes.yaxis, [value(point) for point in points])
    charts.share_axis(panels[0])
    panels[0].legend(frameon=False)
    panels[-1].set_xlabel("peers")
    charts.scale_to(panels[-1].xaxis, [point.peers for point in points])
    charts.save(figure, path)
