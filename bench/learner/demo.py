"""Run the main job as `make demo` does, and report its figures."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bench import runs
from bench.machine import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("configs/local.toml"))
    parser.add_argument("--set", action="append", default=[], help="override a setting of the file: section.key=value")


def run(arguments: argparse.Namespace) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        summary = runs.run(arguments.config, Path(folder), arguments.set, runs.Story())
        figures = runs.figures_of(summary)
    return Outcome({"config": str(arguments.config), "set": arguments.set}, figures)
