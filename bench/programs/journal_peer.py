"""Run a peer that records what the coordinator acknowledged; it is started in place of the command line.

The first argument is the journal's path; the others are those of the command line. The journal has one line
``lease index`` per acknowledged rollout. Those of evaluations are left out: the ledger keeps only their scores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from peer.worker.core.events import Verdict
from peer.worker.uploads import Uploader
from rollcast.cli.main import main
from rollcast.wire.rollouts import Rollout


def keep_journal(path: Path) -> None:
    """Make every upload append its acknowledged rollouts to the journal as soon as the verdicts arrive."""
    upload = Uploader.upload

    async def noted(uploader: Uploader, rollouts: Iterable[Rollout]) -> tuple[Verdict, ...]:
        rollouts = tuple(rollouts)
        training = {one.lease_id for one in rollouts if one.group_id}  # groups are numbered from 1
        verdicts = await upload(uploader, rollouts)
        kept = [one for one in verdicts if one.accepted and one.lease_id in training]
        lines = [f"{one.lease_id} {one.sample_index}\n" for one in kept]
        with path.open("a") as journal:
            journal.write("".join(lines))
        return verdicts

    Uploader.upload = noted  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    keep_journal(Path(sys.argv.pop(1)))
    main()
