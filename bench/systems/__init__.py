"""Wrap the systems that can broadcast in the emulated network: ours, and those that people would use instead.

Each module has ``missing() -> str`` (what is not installed; empty when nothing) and
``broadcasts(case) -> Iterator[Broadcast]``, which measures one broadcast at each step for as long as it is asked.
"""
