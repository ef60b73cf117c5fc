"""What the planner's plots need computed."""

from __future__ import annotations

from pathlib import Path

from capacity.model.run_rules import Conduct
from capacity.planner.plans import Plan
from capacity.predict.prediction import predict
from capacity.reports.plan import in_order
from capacity.reports.plots import Point, utilisation_against_workers
from rollcast.sim.validation import publish_s

_POINTS = 8  # of the curve: each is a prediction, a second or so
_BEYOND = 1.5  # the curve goes on to so many times the plan's workers
_WARM_UP_STEPS, _STEPS = 10, 20


def draw_utilisation(path: Path, made: Plan) -> None:
    """Utilisation as predicted with the first k workers of the plan's order, and some beyond."""
    usable = [(one.worker, one.speed) for one in in_order(made.candidates) if one.speed is not None and not one.barred]
    chosen = len(made.chosen)
    most = min(len(usable), max(chosen + 4, round(chosen * _BEYOND)))
    counts = sorted({chosen} | {max(1, round(most * number / _POINTS)) for number in range(1, _POINTS + 1)} - {0})
    curve = [Point(0, 0.0)]
    demand = made.demand
    conduct = Conduct(whole_batches=True, t_publish_s=publish_s(demand))
    for count in filter(None, counts):
        found = predict(demand, usable[:count], conduct, warm_up_steps=_WARM_UP_STEPS, steps=_STEPS)
        curve.append(Point(count, found.utilisation))
    subtitle = (
        f"predicted; S = {demand.staleness_limit}, kappa = {demand.publish_every_steps}, {demand.topology}, "
        f"{demand.rollouts_per_step} rollouts a step of {demand.t_train_s:g} s"
    )
    utilisation_against_workers(path, curve, chosen, subtitle)
