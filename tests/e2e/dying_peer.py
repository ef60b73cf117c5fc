"""Run a peer that is killed once it generates training work, while it holds leases."""

from __future__ import annotations

import os
import signal

from peer.worker.core.events import SlotWork
from peer.worker.worker import Worker
from rollcast.cli.main import main

_generate_slice = Worker._generate_slice


async def die_in_training(
    worker: Worker, batch_id: int, slice_tokens: int, renew: bool = False, more: tuple[SlotWork, ...] = ()
) -> None:
    # Leases of an evaluation, which may come first, are not in the run's accounts.
    if any(item.lease.kind == "training" for item in (*worker._work.values(), *more)):
        os.kill(os.getpid(), signal.SIGKILL)
    await _generate_slice(worker, batch_id, slice_tokens, renew, more)


if __name__ == "__main__":
    Worker._generate_slice = die_in_training  # type: ignore[method-assign]
    main()
