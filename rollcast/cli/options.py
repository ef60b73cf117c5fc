"""Options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", negative=())]
AsJson = Annotated[bool, Parameter(name="--json", negative=(), help="Print one JSON object.")]
"""The same for commands whose docstring does not describe it."""
Preview = Annotated[bool, Parameter(negative=())]
Settings = Annotated[tuple[str, ...], Parameter(name="--set", negative=())]


LATEST_RUN = Path("runs/latest")  # a link that every run renews once its coordinator listens


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class RunOptions:
    """The run that a command works on."""

    run_folder: Path = LATEST_RUN
    """The run's folder, which has the coordinator's address and the key that acts need."""
    url: str = ""
    """The coordinator's address, if the folder does not have it; with a token in ROLLCAST_TOKEN."""
    ca_file: Path | None = None
    """Certificate (PEM) of the run's CA, for an https address."""


THIS_RUN = RunOptions()
