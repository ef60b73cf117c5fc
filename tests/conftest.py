"""Property tests draw the same examples each time, so that a commit is not refused for what an older one did.

`HYPOTHESIS_PROFILE=explore python -m pytest` draws others.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
