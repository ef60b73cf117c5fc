"""Epochs: what happens when the learner went on from another state than the one that it had published."""

from __future__ import annotations

from coordinator.actions import Action
from coordinator.events import EpochRecorded, EpochRequested
from coordinator.state import CoreState


def requested(state: CoreState, event: EpochRequested) -> list[Action]:
    """The learner asks for an epoch of its own."""
    return []


def recorded(state: CoreState, event: EpochRecorded) -> list[Action]:
    """The epoch is durable."""
    return []
