"""`rollcast simulate`: simulate a whole fleet on virtual time, with faults sampled from a seed."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from rollcast.cli.options import Json
from rollcast.runtime.errors import ConfigError

if TYPE_CHECKING:
    from rollcast.sim.settings import FleetSettings
    from rollcast.sim.simulation import Outcome

#: The keys of rollcast.sim.faults.KINDS, whose module imports every role: help must appear at once.
FAULT_NAMES = (
    *("kill-peer", "power-peer", "drain-peer", "kill-coordinator", "power-coordinator", "kill-learner"),
    *("power-learner", "move-learner", "kill-origin", "power-origin", "partition", "one-way", "alone", "learner-cut"),
    *("freeze", "slow-disk", "full-disk", "herd", "repeats", "weather", "slow-peer", "hung-engine", "corrupt-relay"),
    *("hostile-peer", "verifiers", "clock", "kill-cell", "cut-cell"),
)
CHUNKED_PEERS_MAX = 16  # above it versions arrive at the time of the fluid bound
EXIT_VIOLATED = 1


def simulate_fleet(
    *,
    peers: int | None = None,
    hours: float | None = None,
    seed: int = 0,
    faults: Annotated[
        str, Parameter(help=f"Faults to inject: all, none, or a comma-separated list of {', '.join(FAULT_NAMES)}.")
    ] = "none",
    gap_s: float | None = None,
    standard_mix: Annotated[bool, Parameter(name="--standard", negative=())] = False,
    standby: Annotated[bool, Parameter(negative=())] = False,
    cells: int = 0,
    compiled: Annotated[bool, Parameter(negative=())] = False,
    json_output: Json = False,
) -> int:
    """Simulate a run: the real cores of every role on virtual time, with every invariant checked after every event.

    The same options and seed give the same digest on every machine. The exit status is 1 if an invariant was violated.

    Parameters
    ----------
    peers
        Number of workers; 32 by default. With more than 16, versions arrive at the time of the fluid bound instead of
        chunk by chunk.
    hours
        Hours of virtual time; 1 by default.
    seed
        Seed of all random choices.
    gap_s
        Mean number of virtual seconds between two faults.
    standard_mix
        Simulate the small fleet that the tests sample from this seed.
    standby
        Simulate a second coordinator, which shares the first one's database and takes over when that one is lost.
    cells
        Divide the workers among so many cells, each with a coordinator and an uplink of its own; with --standard, add
        cells of two workers each.
    compiled
        Use the cores that `make compiled` compiled in this checkout; the outcome is the same.
    json_output
        Print one JSON object.
    """
    console = Console(stderr=True)
    with console.status("loading the simulator"):
        if compiled:
            from rollcast.sim.compiled import use

            use()  # before the simulator is imported
        from rollcast.sim.scenario import GAP_S
        from rollcast.sim.simulation import simulate

    settings, seconds = _fleet(peers, hours, seed, standard_mix)
    if cells:
        settings = _in_cells(settings, cells, keep_peers=standard_mix)
    if standby:
        settings = replace(settings, coordinators=2)
    names = None if faults == "none" else () if faults == "all" else tuple(faults.split(","))
    gap = gap_s if gap_s is not None else GAP_S if standard_mix else seconds / 60.0
    with console.status("simulating") as status:
        outcome = simulate(
            settings,
            seed,
            seconds=seconds,
            faults=names,
            gap_s=gap,
            progress=lambda share: status.update(f"simulated {share:.0%} of {seconds / 3600.0:.2f} virtual hours"),
        )
    if json_output:
        json.dump(outcome.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _show(outcome)
    return EXIT_VIOLATED if outcome.violations else 0


def _fleet(peers: int | None, hours: float | None, seed: int, standard_mix: bool) -> tuple[FleetSettings, float]:
    from rollcast.sim.scenario import realistic, standard

    if standard_mix:
        settings, seconds = standard(seed), 90.0
    else:
        settings, seconds = realistic(peers or 32), 3600.0
        if settings.peers <= CHUNKED_PEERS_MAX:
            settings = replace(settings, receiving="chunks")
    if standard_mix and peers is not None:
        raise ConfigError("--standard chooses the number of peers itself", fix="leave out --peers or --standard")
    if (peers is not None and peers < 1) or (hours is not None and hours <= 0.0):
        raise ConfigError("--peers and --hours must be above 0", fix="give at least one peer and some time")
    return settings, seconds if hours is None else 3600.0 * hours


def _in_cells(settings: FleetSettings, cells: int, *, keep_peers: bool) -> FleetSettings:
    """Return the fleet with cells: besides its workers, or with all of its workers in them."""
    if not 0 < cells <= settings.peers:
        fix = "give fewer cells than workers"
        raise ConfigError(f"{settings.peers} workers cannot be divided among {cells} cells", fix=fix)
    if keep_peers:
        return replace(settings, cells=cells)
    each = math.ceil(settings.peers / cells)
    return replace(settings, peers=0, cells=cells, cell_peers=each, receiving="fluid")


def _show(outcome: Outcome) -> None:
    console = Console(highlight=False, soft_wrap=True)
    ages = ", ".join(f"{age}: {count}" for age, count in outcome.ages.items())
    dropped = ", ".join(f"{count} {reason}" for reason, count in outcome.dropped.items())
    faults = ", ".join(f"{count} {name}" for name, count in outcome.faults.items())
    rows = {
        "virtual time": f"{outcome.seconds / 3600.0:.2f} h, seed {outcome.seed}",
        "learner steps": f"{outcome.steps}, utilisation {outcome.utilisation:.3f}",
        "rollouts": f"{outcome.issued} issued, {outcome.accepted} accepted, {outcome.trained} trained",
        "dropped": dropped or "none",
        "ages trained": ages or "none",
        "T_bcast": f"{outcome.t_bcast_s:.2f} s median, {outcome.t_bcast_p95_s:.2f} s at the 95th percentile",
        "faults": faults or "none",
        "checked": f"{outcome.checks} checks, {len(outcome.violations)} violations",
        "speed": f"{outcome.realtime_factor:.0f} x real time, {outcome.core_events / outcome.cpu_s:.0f} events of the "
        "coordinator's core per CPU second",
        "cores": "compiled" if outcome.compiled else "interpreted",
        "digest": outcome.digest,
    }
    for name, text in rows.items():
        console.print(f"{name:<14} {text}")
    for violation in outcome.violations:
        console.print(f"[red]{violation}[/red]")
