"""Wrap the systems that can broadcast in the emulated network: Rollcast, and those that people would use instead.

Each module has ``missing() -> str``, which returns what is not installed (empty when nothing is missing), and
``broadcasts(case) -> Iterator[Broadcast]``, which measures one broadcast each time the caller asks for the next one.
"""
