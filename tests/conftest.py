"""Property tests draw the same examples each time, so that a commit is not refused for what an older one did.

`HYPOTHESIS_PROFILE=explore python -m pytest` draws others.
"""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: how long an example takes is a matter of what else the machine does.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
