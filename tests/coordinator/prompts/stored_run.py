"""Write a run folder with four scored rollouts, one of them of two turns, for tests of what reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from coordinator.stores.sqlite import Ledger
from coordinator.tasks.checks.task import Problem, Score
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import RolloutId
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.stored_work import PEER, attempt, batch, group, rollout, store_rollout

TOKENIZER = Tokenizer((), "0123456789")


async def stored_run(root: Path) -> RunFolder:
    """Return a run of four rollouts: rewards .25 to 1, of 4 to 6 and 14 tokens; two were trained on, at ages 2 and 3.

    The last one is of a game of two agents and has a tool's turn too; its first turn has log-probabilities of -1 a
    token.
    """
    run = RunFolder(root)
    ledger = Ledger.open(run.ledger)
    ledger.record_event("peer_joined", PEER, "alpha as peer", cause="peer alpha")
    for number in (1, 2, 3, 4):
        game = {"environment": "gym:sums", "agents": ["buyer", "seller"]}
        problem = Problem(f"sum:{number}", "1+1=", "2", game if number == 4 else {})
        ledger.record_group(group(number), problem.to_json())
        ledger.record_attempt(attempt(number, group_id=number))
        made = rollout(number, group_id=number, version=number + 1 if number < 3 else 9, tokens=3 + number)
        if number == 4:
            (said,) = made.segments
            ids = (TOKENIZER.eos_id, *said.token_ids[1:])  # the turn before was cut off without its end
            tool = replace(said, role="tool", packed_ids=pack_ids(ids), loss_mask=b"\0" * len(ids))
            made = replace(made, segments=(replace(said, reported_logprobs=(-1.0,) * len(ids)), tool))
        await ledger.store_rollouts([store_rollout(number, made)])
        await ledger.record_score(RolloutId(number), Score(number / 4, number == 4, "", {"format": 0.5}))
    await ledger.record_batch(batch(4, 1))
    await ledger.record_batch(batch(6, 2))
    await ledger.close()
    return run
