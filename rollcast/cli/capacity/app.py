"""`rollcast capacity`: which workers to turn on, and why. Every command is a module of its own, imported when used."""

from __future__ import annotations

from cyclopts import App

app = App(name="capacity", help="Choose the cheapest workers that keep the learner busy, and explain the choice.")

_COMMANDS = {
    "offers": ("offers:offers", "List and filter the pool, and say what of it was skipped."),
    "plan": ("plan:plan", "Choose the cheapest set of workers that keeps the learner busy."),
    "explain": ("explain:explain", "Say what limits a plan, and what would change it."),
    "what-if": ("what_if:what_if", "Plan for other staleness limits, uplinks, topologies and so on."),
    "replan": ("replan:replan", "Plan again from a plan, or replay what came and went since."),
    "calibrate": ("calibrate:calibrate_run", "Fit speeds, T_train and T_bcast from a run's records."),
    "validate": ("validate:validate", "Run a plan through the simulator: predicted beside simulated."),
    "diff": ("diff:diff", "Compare two plans."),
    "status": ("live:status", "Show which peers of a run are on, and why."),
    "price": ("live:price", "Say what peers of a run cost."),
    "set": ("set:change", "Set S, kappa and the budget of a run while it goes on."),
    "cost": ("cost:cost", "Show what a run's workers cost, by day and provider."),
    "schema": ("diff:schema", "Print the JSON Schema of a plan."),
}
for _name, (_function, _help) in _COMMANDS.items():
    app.command(f"rollcast.cli.capacity.{_function}", name=_name, help=_help)
