"""`rollcast capacity schema`: the JSON Schema of what `plan --format json` prints."""

from __future__ import annotations

import sys

from capacity.questions.plan_json import json_schema


def schema() -> int:
    """Print the JSON Schema (draft 2020-12) of a plan."""
    sys.stdout.write(json_schema())
    return 0
