"""Serve the dashboard of a simulated fleet: ``python -m bench.people.dashboard_fleet --workers 1000 --port 7499``.

The real HTTP side runs over a real coordinator's core, which a simulated fleet drives at the pace of the wall clock:
joins, work, broadcasts, drops, silent peers, a quarantine, and peers that activation switches off. The program prints
the page's address.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import structlog

from bench.shown.run import shown_run
from rollcast.runtime.process import collect_garbage_in_small_steps


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.people.dashboard_fleet", description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--port", type=int, default=7499)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this many seconds")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--warm-up", type=float, default=120.0, help="virtual seconds before anything is served")
    parser.add_argument("--run-folder", type=Path, help="default: a temporary folder, deleted at the end")
    arguments = parser.parse_args()
    collect_garbage_in_small_steps()  # as the real coordinator does
    level = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=level, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.run_folder or Path(folder) / f"simulated-{arguments.workers}"
        with suppress(KeyboardInterrupt):  # Ctrl-C ends the program
            asyncio.run(_serve(root, arguments))


async def _serve(root: Path, arguments: argparse.Namespace) -> None:
    async with shown_run(
        root,
        workers=arguments.workers,
        port=arguments.port,
        seed=arguments.seed,
        warm_up_s=arguments.warm_up,
    ) as run:
        print(run.page, flush=True)
        timeout_s = None if arguments.seconds == float("inf") else arguments.seconds
        done, _ = await asyncio.wait([run.failed], timeout=timeout_s)
        for failed in done:
            raise failed.result()


if __name__ == "__main__":
    main()
