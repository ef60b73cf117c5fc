"""Name what a worker runs in, a cloud's cluster or a Kubernetes Job, by its tag, and find the tag by the name."""

from __future__ import annotations

import hashlib
import re

from capacity.providers.base import WorkerTag

_RUN_DIGITS = 10


def name_of(tag: WorkerTag) -> str:
    """Return the name for a tag: at most 53 lower-case letters, digits and hyphens, the run as a hash of its id."""
    return f"rc-{run_digest(tag.run_id)}-{tag.worker_id}-{tag.incarnation}"


def tag_of(name: str, run_id: str) -> WorkerTag | None:
    """Return the tag of the worker that a name stands for; None if the name is not one of this run's."""
    found = re.fullmatch(rf"rc-{run_digest(run_id)}-([a-z0-9-]+)-([1-9][0-9]{{0,5}})", name)
    try:
        return None if found is None else WorkerTag(run_id, found[1], int(found[2]))
    except ValueError:
        return None


def run_digest(run_id: str) -> str:
    """Return the digits that stand for a run in names and labels."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:_RUN_DIGITS]
