"""Configure the whole suite: the examples that property tests generate, and the order of test modules.

Property tests generate the same examples each time, so that a commit does not fail for a bug of an older one.
`HYPOTHESIS_PROFILE=explore python -m pytest` generates others.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

#: Tests with these markers start processes, browsers or whole fleets: seconds to minutes each.
LONG_MARKERS = ("e2e", "browser", "sim")

# No deadline: the time of an example depends on the machine's other load.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def is_long(item: pytest.Item, timeout_s: float) -> bool:
    """Return whether a test is marked as long, or may take longer than the common timeout."""
    own = item.get_closest_marker("timeout")
    return any(map(item.get_closest_marker, LONG_MARKERS)) or (own is not None and own.args[0] > timeout_s)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run modules with long tests first.

    A worker takes whole modules (`--dist loadfile`): if a module of minutes came last, the other workers would have
    nothing left to do while it runs.
    """
    timeout_s = float(config.getini("timeout"))
    long_modules = {item.path for item in items if is_long(item, timeout_s)}
    items.sort(key=lambda item: item.path not in long_modules)
