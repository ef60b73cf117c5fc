"""`rollcast capacity`: choose workers and explain the choice. Each command is a module that is imported when used."""

from __future__ import annotations

from cyclopts import App

app = App(name="capacity", help="Choose the cheapest workers that keep the learner busy, and explain the choice.")

_COMMANDS = {
    "offers": ("offers:offers", "List and filter the workers of a pool, and show which rows were skipped."),
    "plan": ("plan:plan", "Choose the cheapest set of workers that keeps the learner busy."),
    "explain": ("explain:explain", "Explain what limits a plan and what would change it."),
    "what-if": ("what_if:what_if", "Plan for other staleness limits, uplinks, topologies and so on."),
    "replan": ("replan:replan", "Plan again from an earlier plan, or replay events since then."),
    "calibrate": ("calibrate:calibrate_run", "Fit speeds, T_train and T_bcast to a run's records."),
    "apply": ("apply:apply", "Show what would be started to carry out a plan; start it with --yes."),
    "validate": ("validate:validate", "Simulate a plan and compare the results with its predictions."),
    "diff": ("diff:diff", "Compare two plans."),
    "compare": ("compare:compare", "Compare a plan's bill with generating on the learner's class of GPUs."),
    "status": ("live:status", "Show which peers of a run are on and why."),
    "price": ("live:price", "Set the price of peers of a run."),
    "set": ("live:change", "Set S, kappa and the budget of a running run."),
    "cost": ("cost:cost", "Show what a run's workers cost, by day and provider."),
    "schema": ("diff:schema", "Print the JSON Schema of a plan."),
}
for _name, (_function, _help) in _COMMANDS.items():
    app.command(f"rollcast.cli.capacity.{_function}", name=_name, help=_help)
