"""Process the stretches of a state on several threads, in order and with bounded memory.

What the threads call must release the interpreter's lock for most of its time, as NumPy, BLAKE3 and zstd do.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# A publication hashes a state, a small one twice, and encodes it at the same time, beside training.
_CORES_SHARE = 0.25
# More threads would wait for the interpreter's lock, and for memory.
_THREADS_MOST = 4


def threads_for_a_pass() -> int:
    """Return how many threads one pass over a state uses: a share of the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_THREADS_MOST, int(_CORES_SHARE * cores)))


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield the result of ``work`` for each item, in the order of the items.

    No more than two items a thread are taken ahead. An exception of ``work`` or of ``items`` is raised in its turn, and
    ends the iteration.

    Args:
        threads: one: everything runs on the thread that iterates.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="pass") as pool:
        running: deque[Future[Result]] = deque()
        for item in items:
            running.append(pool.submit(work, item))
            if len(running) >= 2 * threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
