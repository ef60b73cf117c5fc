"""`rollcast capacity cost RUN`: show what a run's rented workers cost, by day and provider, against the forecast."""

from __future__ import annotations

from pathlib import Path

from capacity.fleet.events import Spent
from capacity.fleet.journal import decode_lines, read_journal
from capacity.fleet.rows import Row
from capacity.reports.spending import SpendReport, spend_report, spent_usd
from capacity.reports.tables import Cell, Column, Sheet
from rollcast.cli.capacity.output import FormatOption, print_json, print_sheets
from rollcast.cli.options import LATEST_RUN, Json
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder

_COLUMNS = (
    Column("day", "day (UTC)"),
    Column("provider", "provider"),
    Column("machine_usd", "machines $", 4),
    Column("egress_usd", "egress $", 4),
    Column("spent_usd", "spent $", 4),
    Column("forecast_usd", "forecast $", 4),
    Column("difference", "over forecast", None),
)


def cost(run: Path = LATEST_RUN, /, *, form: FormatOption = "table", json_output: Json = False) -> int:
    """Show what the workers that a run's coordinator rented have cost, compared with the forecast.

    Donated peers and the learner's machine are not included. For a running run the figures are up to half a minute old.

    Parameters
    ----------
    run
        The coordinator's run folder.
    form
        Output format: table, csv, html or json.
    json_output
        The same as --format json.
    """
    report = spend_report(_rows(run), accepted_rollouts(RunFolder(run)))
    if json_output or form == "json":
        print_json(report.to_json())
    else:
        print_sheets([sheet_of(report)], form, title=f"Cost of {run}")
    return 0


def _rows(run: Path) -> list[Row]:
    from coordinator.fleet.journal import NAME
    from coordinator.stores.postgres import select_fleet_journal
    from coordinator.stores.reader import has_url, reading

    if has_url(RunFolder(run)):
        with reading(RunFolder(run)) as connection:
            return decode_lines(select_fleet_journal(connection), NAME)
    path = RunFolder(run).fleet_journal
    if not path.exists():
        raise RunFolderError(
            f"{run} has no record of costs",
            cause=f"{path} is missing: the coordinator rented no workers, or this is not its run folder",
            fix="give the run folder of a coordinator with [providers] (docs/providers.md)",
        )
    return read_journal(path)


def accepted_rollouts(folder: RunFolder) -> int:
    """Return the number of rollouts that the run accepted.

    Raises:
        StoreError: the ledger cannot be read.
    """
    from coordinator.ledger.sql_work import select_counts
    from coordinator.stores.reader import reading

    with reading(folder) as connection:
        return select_counts(connection).accepted


def sheet_of(report: SpendReport) -> Sheet:
    """Return one row for each day and provider."""
    rows = [(one.day, one.provider, *_cells(one.spent)) for one in report.days]
    each = report.usd_per_accepted_rollout
    running = ", ".join(f"{count} at {provider}" for provider, count in sorted(report.running.items()))
    lines = (
        f"total {spent_usd(report.total):.4f} $ of {report.total.forecast_usd:.4f} $ forecast",
        f"{report.accepted} rollouts accepted"
        + ("" if each is None else f", {each:.3g} $ each ({1000 * each:.3g} $ per thousand)"),
        f"running: {running or 'none'}",
    )
    return Sheet("Spent against forecast", _COLUMNS, tuple(rows), lines=lines)


def _cells(spent: Spent) -> tuple[Cell, ...]:
    total = spent_usd(spent)
    over = f"{total / spent.forecast_usd - 1.0:+.1%}" if spent.forecast_usd > 0.0 else None
    return spent.machine_usd, spent.egress_usd, total, spent.forecast_usd, over
