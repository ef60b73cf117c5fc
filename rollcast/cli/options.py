"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", negative=())]
Settings = Annotated[tuple[str, ...], Parameter(name="--set", negative=())]
