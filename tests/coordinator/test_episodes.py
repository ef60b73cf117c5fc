"""Test episodes in a whole coordinator: scripted peers, real environments, and the ledger in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import slot_from_pb
from rollcast.wire.rollouts import prefix_digest
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import unpack_ids
from tests.coordinator.running import Member, changed, rollout, running, version
from tests.coordinator.test_service import fetch_batch, open_run, take_leases, upload

GAMES = Path(__file__).parent / "environments" / "scripted_game.py"


def turns(peer: Member, tokenizer: Tokenizer, leases: list[pb.Lease], text: str) -> list[pb.Rollout]:
    """Return the next turn of every leased episode."""
    said = [*tokenizer.encode(text), tokenizer.eos_id]
    made = []
    for lease in leases:
        for slot in lease.slots:
            made.append(rollout(lease, slot, peer.enrolment.peer_id, said))
            if slot.prefix:
                made[-1].prefix_digest = prefix_digest(slot_from_pb(slot).prefix)
    return made


async def test_episodes_of_two_turns_become_a_batch(tmp_path: Path) -> None:
    task = {"kind": "gym", "path": f"{GAMES}:ScriptedGame", "parameters": {"folder": str(tmp_path)}}
    sampling = {"prompt_tokens_max": 12, "new_tokens_max": 64}
    changes = changed(task=task, sampling=sampling, environments={"processes": 1, "sticky_s": 0.0})
    async with running(tmp_path, changes) as coordinator:
        async with Member(await coordinator.join("learner")) as learner, Member(await coordinator.join("peer")) as peer:
            info = await open_run(learner, coordinator)
            tokenizer = Tokenizer.from_json(info.tokenizer_json)
            await peer.hello()
            await learner.stub.Announce(version(info.run_id, coordinator.learner_identity))
            await peer.next("announcement")
            batch = asyncio.create_task(fetch_batch(learner, 0))
            first = await take_leases(peer, 4)
            assert not any(slot.prefix for lease in first for slot in lease.slots)
            assert await upload(peer, turns(peer, tokenizer, first, "a")) == [(True, "")] * 4
            second = await take_leases(peer, 4)
            for lease in second:
                seed = tokenizer.decode(lease.prompt_token_ids).removeprefix("game ")
                for slot in lease.slots:
                    assert [one.role for one in slot.prefix] == [pb.ASSISTANT, pb.USER]
                    assert tokenizer.decode(unpack_ids(slot.prefix[1].packed_ids)) == f"{seed}: a"
            assert await upload(peer, turns(peer, tokenizer, second, "end")) == [(True, "")] * 4
            header, *parts = await batch
            rollouts = [one for part in parts for one in part.rollouts]
            assert header.header.rollout_count == 4
            assert [one.reward for one in rollouts] == [1.0] * 4  # 0.5 for each turn
            await learner.stub.ReportStatus(pb.LearnerStatus(phase="finished"))
        assert await coordinator.ended() == 0
