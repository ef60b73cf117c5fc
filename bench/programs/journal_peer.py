"""Run a peer that records what the coordinator acknowledged; it is started in place of the command line.

The first argument is the journal, one line ``lease index`` an acknowledged rollout; the rest is the command line's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from peer.worker.events import Verdict
from peer.worker.uploads import Uploader
from rollcast.cli.main import main
from rollcast.wire.rollouts import Rollout


def keep_journal(path: Path) -> None:
    """Have every acknowledgement written down as soon as it is here."""
    upload = Uploader.upload

    async def noted(uploader: Uploader, rollouts: Iterable[Rollout]) -> tuple[Verdict, ...]:
        verdicts = await upload(uploader, rollouts)
        lines = [f"{one.lease_id} {one.sample_index}\n" for one in verdicts if one.accepted]
        with path.open("a") as journal:
            journal.write("".join(lines))
        return verdicts

    Uploader.upload = noted  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    keep_journal(Path(sys.argv.pop(1)))
    main()
