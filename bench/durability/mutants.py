"""Run the mutation gate: plant bugs and count how many of them the simulator finds, within how many seeds.

Every bug is hunted with the standard fault mix and the judge alone: the cores' own assertions do not count.
Before that seeds are run without a bug, with one coordinator, with a standby beside it and with two cells, and the
judge must find nothing. As many processes as there are cores share the work. ``--write`` writes the table of
docs/simulator.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.machine import Outcome
from rollcast.sim.mutants.gate import MUTANTS, Hunt, hunts, violations
from rollcast.sim.parallel import cores

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=400, help="most seeds to try per bug")
    parser.add_argument("--clean", type=int, default=400, help="seeds to run without a bug, in each kind of fleet")
    parser.add_argument("--only", default="", help="comma-separated names of bugs")
    parser.add_argument("--processes", type=int, default=cores(), help="processes at once")
    parser.add_argument("--write", action="store_true", help="write the table into docs/simulator.md")


def run(arguments: argparse.Namespace) -> Outcome:
    names = [name for name in arguments.only.split(",") if name]
    mutants = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    violated = 0
    for violation in violations(arguments.clean, arguments.processes):
        violated += 1
        print(violation, file=sys.stderr, flush=True)
    hunted = []
    for one in hunts(mutants, arguments.seeds, arguments.processes):
        hunted.append(one)
        print(f"{one.mutant.name}: seed {one.seed}, {one.rule}", file=sys.stderr, flush=True)
    if arguments.write:
        write_table(PAGE, hunted)
    found = [one.seed for one in hunted if one.seed is not None]
    figures = {
        "planted": len(mutants),
        "found": len(found),
        "worst_seed": max(found, default=-1),
        "invariants": len({one.mutant.against for one in hunted if one.seed is not None}),
        "clean_seeds": arguments.clean,
        "clean_violations": violated,
    }
    return Outcome({"seeds": arguments.seeds, "clean": arguments.clean, "only": names}, figures)


def table(hunts: Iterable[Hunt]) -> str:
    """Return a Markdown table of the planted bugs, each with the first seed that finds it."""
    rows = ["| planted bug | against | seed | seen as |", "|---|---|---|---|"]
    for one in hunts:
        seed = "not found" if one.seed is None else str(one.seed)
        rows.append(f"| `{one.mutant.name}`: {one.mutant.text} | {one.mutant.against} | {seed} | {one.rule} |")
    return "\n".join(rows)


def write_table(page: Path, hunts: Iterable[Hunt]) -> None:
    """Write the table between its marks in the page."""
    before, rest = page.read_text().split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n{table(hunts)}\n{END}{after}")
