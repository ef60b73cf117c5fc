"""`rollcast capacity calibrate`: fit speeds, T_train and T_bcast to a run's records."""

from __future__ import annotations

from pathlib import Path

from capacity.inputs.calibration import Calibration, calibrate
from capacity.inputs.run_records import read_run
from capacity.reports.calibrated_pool import calibration_sheets, demand_values
from capacity.reports.tables import records_of
from rollcast.cli.capacity.output import FormatOption, print_json, print_sheets
from rollcast.cli.options import LATEST_RUN
from rollcast.runtime.errors import RunFolderError

SCHEMA = "rollcast.capacity.calibrate/1"


def calibrate_run(
    run_folder: Path = LATEST_RUN,
    /,
    *,
    first_step: int = 1,
    end_step: int | None = None,
    form: FormatOption = "table",
) -> int:
    """Fit the planner's inputs to the records of a run; `plan --from-run RUN` uses them.

    Parameters
    ----------
    run_folder
        The coordinator's run folder. The run may still be running.
    first_step
        First learner step to use. Step 0 compiles and is left out by default.
    end_step
        Learner step before which to stop; by default the end of the records.
    form
        Output format: table, json, csv (peers only) or html.
    """
    found = calibration_of(run_folder, first_step, end_step)
    sheets = calibration_sheets(found, ids=form in ("json", "csv"))
    if form == "json":
        print_json(
            {
                "schema": SCHEMA,
                "run": str(run_folder),
                "figures": records_of(sheets[0]),
                "peers": records_of(sheets[1]),
                "demand": demand_values(found),
            }
        )
    else:
        print_sheets(sheets, form, title=f"calibration of {run_folder}")
    return 0


def calibration_of(run_folder: Path, first_step: int = 1, end_step: int | None = None) -> Calibration:
    """Return the calibration from a run's records.

    Raises:
        RunFolderError: the run has no records, or too few.
    """
    records = read_run(run_folder)
    last = records.steps[-1].step + 1 if records.steps else 0
    try:
        return calibrate(records.between(first_step, last if end_step is None else end_step))
    except ValueError as error:
        raise RunFolderError(
            f"the records of {run_folder} are too few for a calibration",
            cause=str(error),
            fix="let the run do more steps, or include more of them with --first-step and --end-step",
        ) from None
