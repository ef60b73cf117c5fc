"""Define providers: what a provider offers, and how it starts, stops and finds workers.

Every start carries a tag: run, worker and incarnation. A provider starts a tag at most once, whatever is called how
often, and finds it again by the tag alone, so that nothing is lost between a start and its being written down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from capacity.model.workers import WORKER_ID, Worker

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
INCARNATIONS_MAX = 999_999


@dataclass(frozen=True, slots=True, order=True)
class WorkerTag:
    """One life of one worker of one run: never used again.

    Raises:
        ValueError: an id has characters or a length that a tag cannot carry, or the incarnation is out of range.
    """

    run_id: str
    worker_id: str
    incarnation: int

    def __post_init__(self) -> None:
        if not RUN_ID.fullmatch(self.run_id) or not WORKER_ID.fullmatch(self.worker_id):
            raise ValueError(f"{self.run_id!r} and {self.worker_id!r} do not make a tag")
        if not 1 <= self.incarnation <= INCARNATIONS_MAX:
            raise ValueError(f"an incarnation is 1 to {INCARNATIONS_MAX}, not {self.incarnation}")

    def __str__(self) -> str:
        return f"{self.run_id}.{self.worker_id}.{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> WorkerTag:
        """Parse a tag; the inverse of ``str``.

        Raises:
            ValueError: the text is no tag.
        """
        parts = text.rsplit(".", 2)
        if len(parts) != 3 or not re.fullmatch(r"[1-9][0-9]{0,5}", parts[2]):
            raise ValueError(f"{text!r} is not a worker's tag")
        return cls(parts[0], parts[1], int(parts[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A worker that could be started, and how it would be billed.

    Args:
        worker: the worker as the planner sees it. Its uplink is the cap that it is started with, and its ``worker_id``
            is unique among all providers.
        minimum_s: seconds that are billed however short the worker runs.
        granularity_s: seconds of which the billed time is a multiple.
        tail_s: seconds for which the worker may still cost money once a stop is wanted, or once the coordinator is
            lost: the time that a stop takes, and the time after which a worker without a coordinator ends by itself.
    """

    worker: Worker
    minimum_s: float = 0.0
    granularity_s: float = 1.0
    tail_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Running:
    """A worker that runs, or is about to.

    Args:
        where: the process, host or cluster that it runs in, for people.
        started_unix_s: Unix time of its start, by the clock of the machine that it runs on; 0: not known.
    """

    tag: WorkerTag
    where: str
    started_unix_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Listing:
    """The running workers of one run, whichever coordinator started them.

    Args:
        silent: ids of workers whose state is unknown because their host does not answer -> the reason.
    """

    running: tuple[Running, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict)


class Provider(Protocol):
    """A source of workers. Every call returns, or raises, within ``deadline_s`` seconds.

    Each call raises ProviderFailed if the provider cannot be reached or refuses. Whether that call had its effect is
    then unknown until ``list`` answers.
    """

    @property
    def name(self) -> str:
        """Name under which its spending is counted."""
        ...

    async def offers(self, *, deadline_s: float) -> tuple[Offer, ...]:
        """Return everything that could be started, running workers included."""
        ...

    async def start(self, tag: WorkerTag, invite: str, *, deadline_s: float) -> Running:
        """Start ``tag.worker_id`` under this tag, or find it running. A tag that has ended is not started again.

        ``invite`` is a secret: it never goes into a command line or a log.
        """
        ...

    async def stop(self, tag: WorkerTag, *, deadline_s: float) -> None:
        """Return once nothing runs under this tag and nothing will: a start in flight is void."""
        ...

    async def list(self, run_id: str, *, deadline_s: float) -> Listing:
        """Return the workers of this run. May block until the deadline where a host does not answer."""
        ...

    async def close(self) -> None:
        """Release what the provider holds in this process. Workers keep running."""
        ...
