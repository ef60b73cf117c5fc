from __future__ import annotations

import asyncio

from coordinator.shell.peer_sender import AT_ONCE, PAUSE_S, FanOut
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

MESSAGE = pb.CoordinatorMessage()


async def test_few_leave_at_once_and_many_in_their_order() -> None:
    sent: list[PeerId] = []
    fan_out = FanOut(lambda peer_id, _message: sent.append(peer_id))
    peers = [PeerId(f"peer-{number}") for number in range(2 * AT_ONCE + 1)]
    for peer_id in peers:
        fan_out.send(peer_id, MESSAGE)
    assert sent == peers[:AT_ONCE]
    async with asyncio.timeout(5.0):
        while len(sent) < len(peers):
            before = len(sent)
            await asyncio.sleep(PAUSE_S)
            assert len(sent) - before <= 2 * AT_ONCE
    assert sent == peers
    fan_out.close()


async def test_what_waits_is_forgotten_at_the_end() -> None:
    sent: list[PeerId] = []
    fan_out = FanOut(lambda peer_id, _message: sent.append(peer_id))
    for _ in range(AT_ONCE + 1):
        fan_out.send(PeerId("peer"), MESSAGE)
    fan_out.close()
    await asyncio.sleep(2 * PAUSE_S)
    assert len(sent) == AT_ONCE
