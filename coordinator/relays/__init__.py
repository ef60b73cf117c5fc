"""Solve large relay plans in a process of their own, so that the event loop and its interpreter stay free."""
