"""`rollcast tasks`: work on the tasks of a run before there is one."""

from __future__ import annotations

from cyclopts import App

app = App(name="tasks")
app.command("rollcast.cli.tasks.trying:try_task", name="try", help="Score answers to some problems of a task.")
