"""Cut the power of a disk under the coordinator's ledger, and check that every acknowledged change survives.

The ledger's own code runs over SQLite on a disk in memory that loses unsynced data at random, torn in pieces of 512
bytes. The power fails at a random write, sync or deletion, also while the ledger opens; then the ledger opens the data
that is left, and every acknowledged change is searched for. ``planted_lost`` is the same with ``synchronous = OFF``,
which must lose changes: otherwise the check finds nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import random
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bench.machine import Outcome
from bench.stores.ledger_load import LedgerLoad, check_rows
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.errors import LedgerDamaged, MissingExtra, StoreError
from rollcast.runtime.install import install_command
from rollcast.runtime.logs import configure_logging

WRITES_MAX = 250  # most writes before the power fails
OPENING_SHARE = 0.1  # share of losses while the ledger opens
OPENING_WRITES_MAX = 12
AT_ONCE = 3
LOSSES_A_LEDGER = 20  # then a new ledger, so that the check stays fast
PLANTED_LOSSES_MAX = 100


@dataclass(slots=True)
class Sums:
    """The sums over all power losses."""

    acked: int = 0
    lost: int = 0
    torn: int = 0
    damaged: int = 0  # ledgers that did not open or whose pages contradict each other


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--losses", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="rollcast-powerloss-") as folder:
        configure_logging("powerloss", log_file=Path(folder) / "log")
        sums = asyncio.run(lose(Path(folder), arguments.losses, random.Random(arguments.seed), synchronous="FULL"))
        planted_losses = min(arguments.losses, PLANTED_LOSSES_MAX)
        planted = asyncio.run(lose(Path(folder), planted_losses, random.Random(arguments.seed), synchronous="OFF"))
    figures = {
        "losses": arguments.losses,
        "acked": sums.acked,
        "acked_lost": sums.lost,
        "batches_torn": sums.torn,
        "damaged": sums.damaged,
        "planted_losses": planted_losses,
        "planted_lost": planted.lost + planted.torn + planted.damaged,
    }
    return Outcome({"losses": arguments.losses, "seed": arguments.seed}, figures)


async def lose(folder: Path, losses: int, rng: random.Random, *, synchronous: str) -> Sums:
    """Simulate ``losses`` power losses, with a new ledger after every LOSSES_A_LEDGER of them."""
    sums = Sums()
    for number in range(0, losses, LOSSES_A_LEDGER):
        path = folder / f"{synchronous}-{number}.sqlite"
        await _one_ledger(path, min(LOSSES_A_LEDGER, losses - number), rng, synchronous, sums)
    return sums


async def _one_ledger(path: Path, losses: int, rng: random.Random, synchronous: str, sums: Sums) -> None:
    disk_module, connection_module = _apsw_modules()
    disk = disk_module.ForgetfulDisk(str(path))

    def connect(_: Path) -> sqlite3.Connection:
        return cast(sqlite3.Connection, connection_module.ApswConnection("/store", disk, synchronous=synchronous))

    load = LedgerLoad(rng)
    for _ in range(losses):
        disk.writes_left = rng.randrange(OPENING_WRITES_MAX if rng.random() < OPENING_SHARE else WRITES_MAX)
        before = load.acked
        try:
            await _until_lost(path, connect, load)
        except LedgerDamaged:
            sums.damaged += 1  # its mark, which is on the real disk, shows that it held more
            return
        sums.acked += load.acked - before
        disk.lose_power(rng)
        if not _intact(connect, load, sums):
            return  # further losses of a damaged ledger do not count
    disk.unregister()


async def _until_lost(path: Path, connect: Callable[[Path], sqlite3.Connection], load: LedgerLoad) -> None:
    try:
        ledger = Ledger.open(path, connect=connect)
    except StoreError:
        return  # the power failed while the ledger opened
    try:
        await load.run(ledger, AT_ONCE)
    except StoreError:
        await ledger.close()


def _intact(connect: Callable[[Path], sqlite3.Connection], load: LedgerLoad, sums: Sums) -> bool:
    """Check the rows that are left, and return whether the ledger is intact."""
    try:
        connection = connect(Path())
        try:
            if not connection.execute("PRAGMA user_version").fetchone()[0]:
                sums.lost += load.acked  # the ledger has no tables
                return not load.acked
            found = check_rows(load, connection)
        finally:
            connection.close()
    except sqlite3.Error:
        sums.damaged += 1
        return False
    sums.lost += found.lost
    sums.torn += found.torn
    sums.damaged += bool(found.damage)
    return not (found.lost or found.torn or found.damage)


def _apsw_modules() -> tuple[Any, Any]:
    try:
        return (
            importlib.import_module("bench.stores.forgetful_disk"),
            importlib.import_module("bench.stores.apsw_connection"),
        )
    except ImportError as error:
        raise MissingExtra(
            "the benchmark needs the package apsw", cause=str(error), fix=install_command("dev")
        ) from None
