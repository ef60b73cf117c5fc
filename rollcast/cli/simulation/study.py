"""`rollcast study`: simulate many fleets and compare them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App
from rich.console import Console
from rich.table import Table

from rollcast.cli.options import Json
from rollcast.runtime import charts
from rollcast.runtime.errors import ConfigError

if TYPE_CHECKING:
    from rollcast.sim.scale import ScalePoint

EXIT_VIOLATED = 1

app = App(name="study", help="Simulate many fleets and compare them.", help_format="plaintext")


@app.command
def scale(
    *,
    peers: str = "100,1000",
    churn: str = "1,4,16",
    minutes: float = 30.0,
    warm_up_minutes: float = 10.0,
    seed: int = 0,
    plot: Path | None = None,
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
    plot
        Write a plot to this file, PNG or SVG.
    json_output
        Print one JSON object.
    """
    sizes, rates = _numbers("--peers", peers), _numbers("--churn", churn)
    if any(size < 1 or size != int(size) for size in sizes) or min(minutes, warm_up_minutes) <= 0.0:
        raise ConfigError("--peers, --minutes and --warm-up-minutes must be above 0", fix="give peers and time")
    if plot is not None:
        charts.check_path(plot)
    from rollcast.sim.scale import simulate_scale  # the simulator imports every role

    points = []
    for size in sizes:
        for rate in rates:
            sys.stderr.write(f"simulating {int(size)} peers at churn {rate:g}\n")
            found = simulate_scale(int(size), rate, minutes=minutes, warm_up_minutes=warm_up_minutes, seed=seed)
            points.append(found)
    if plot is not None:
        _draw(points, plot)
    if json_output:
        json.dump({"points": [point.to_json() for point in points]}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _show(points)
    return EXIT_VIOLATED if any(point.violations for point in points) else 0


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
    "age": lambda one: f"{one.age_mean:.1f} of {one.staleness_limit}",
    "T_bcast p95": lambda one: f"{one.t_bcast_p95_s:.1f} s",
    "core": lambda one: f"{one.core_share:.2%}",
    "longest": lambda one: f"{one.core_block_ms_max:.0f} ms",
    "h/1,000": lambda one: f"{one.peer_hours_per_kilo_rollout:.1f}",
}


def _show(points: Sequence[ScalePoint]) -> None:
    from rollcast.sim.scale import PREEMPTIONS_PER_HOUR

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for point in points:
        table.add_row(*(text(point) for text in _COLUMNS.values()))
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"A churn of 1 is {PREEMPTIONS_PER_HOUR:g} preemptions of each peer an hour. `core` is the coordinator's core "
        "alone: connections, encryption and the ledger come on top. `h/1,000` is hours of peers for 1,000 trained "
        "rollouts."
    )
    for point in points:
        if point.violations:
            console.print(f"[red]{point.violations} violated invariants with {point.peers} peers[/red]")


def _draw(points: Sequence[ScalePoint], path: Path) -> None:
    rates = sorted({point.churn for point in points})
    figure, (busy, core) = charts.new_panels("Runs of growing fleets", "simulated, with the real cores", 2)
    for number, rate in enumerate(rates):
        mine = sorted((point for point in points if point.churn == rate), key=lambda point: point.peers)
        sizes, style = [point.peers for point in mine], charts.series_style(number, len(rates))
        busy.plot(sizes, [point.utilisation for point in mine], label=f"churn x {rate:g}", **style)
        core.plot(sizes, [point.core_block_ms_max for point in mine], **style)
    busy.set_ylabel("learner busy")
    charts.share_axis(busy)
    busy.legend(frameon=False)
    core.set_ylabel("core's longest event, ms")
    core.set_xlabel("peers")
    charts.scale_to(core.yaxis, [point.core_block_ms_max for point in points])
    charts.scale_to(core.xaxis, [point.peers for point in points])
    charts.save(figure, path)
