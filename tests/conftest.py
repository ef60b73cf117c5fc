"""Configure the whole suite: the examples that property tests generate, and the order of test modules.

Property tests draw the same examples each time, so that a commit is not refused for what an older one did.
`HYPOTHESIS_PROFILE=explore python -m pytest` draws others.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

#: Tests with these markers start processes, browsers or whole fleets: seconds to minutes each.
LONG_MARKERS = ("e2e", "browser", "sim")

# No deadline: how long an example takes is a matter of what else the machine does.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def is_long(item: pytest.Item, timeout_s: float) -> bool:
    """Return whether a test is marked as long, or may take longer than the common timeout."""
    own = item.get_closest_marker("timeout")
    return any(map(item.get_closest_marker, LONG_MARKERS)) or (own is not None and own.args[0] > timeout_s)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run modules with long tests first.

    A worker takes whole modules (`--dist loadfile`): a module of minutes that is taken last is waited for while the
    other workers have nothing left to do.
    """
    timeout_s = float(config.getini("timeout"))
    long_modules = {item.path for item in items if is_long(item, timeout_s)}
    items.sort(key=lambda item: item.path not in long_modules)
