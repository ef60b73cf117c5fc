"""Decide: `handle(event, now) -> list[Action]` on plain state, without I/O."""
