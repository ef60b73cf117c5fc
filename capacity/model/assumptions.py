"""List the figures that a plan rests on, each with its unit, source and uncertainty."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assumption:
    """One figure that a plan rests on.

    Args:
        relative_uncertainty: one standard deviation / the value; 0: exact, or the user's own decision.
    """

    name: str
    value: float | str
    unit: str
    source: str
    relative_uncertainty: float = 0.0
