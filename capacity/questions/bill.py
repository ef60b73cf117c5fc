"""Add up what a run costs: workers, traffic, the learner's machine, the coordinator's, and storage."""

from __future__ import annotations

from dataclasses import dataclass

from capacity.model.demand import Demand
from capacity.model.units import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A run's cost in USD/h at the pace that it reaches.

    Args:
        traffic_usd_per_hour: of the versions that are published at that pace.
        steps_per_hour: learner steps, waiting counted; 0 where none is made.
    """

    workers_usd_per_hour: float
    traffic_usd_per_hour: float
    learner_usd_per_hour: float
    coordinator_usd_per_hour: float
    storage_usd_per_hour: float
    steps_per_hour: float

    @property
    def usd_per_hour(self) -> float:
        return (
            self.workers_usd_per_hour
            + self.traffic_usd_per_hour
            + self.learner_usd_per_hour
            + self.coordinator_usd_per_hour
            + self.storage_usd_per_hour
        )

    @property
    def usd_per_step(self) -> float:
        """USD of one learner step; 0 where none is made."""
        return self.usd_per_hour / self.steps_per_hour if self.steps_per_hour > 0 else 0.0


def bill_of(demand: Demand, workers_usd_per_hour: float, traffic_usd_per_hour: float, utilisation: float) -> Bill:
    """Return the bill of a run.

    Args:
        traffic_usd_per_hour: where the learner never waits; it publishes less while it waits.
        utilisation: share of the time in which the learner trains.
    """
    return Bill(
        workers_usd_per_hour=workers_usd_per_hour,
        traffic_usd_per_hour=traffic_usd_per_hour * utilisation,
        learner_usd_per_hour=demand.learner_usd_per_hour,
        coordinator_usd_per_hour=demand.coordinator_usd_per_hour,
        storage_usd_per_hour=demand.storage_usd_per_hour,
        steps_per_hour=SECONDS_PER_HOUR / demand.t_train_s * utilisation,
    )
