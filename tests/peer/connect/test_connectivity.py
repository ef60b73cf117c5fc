"""The parts by which a peer is reached: each gets its own messages, and none takes the others with it."""

from __future__ import annotations

import asyncio

import pytest

from peer.connect.connectivity import Connectivity
from rollcast.runtime.errors import MalformedMessage, Unreachable
from rollcast.wire.proto import rollcast_pb2 as pb


class _Part:
    def __init__(self, kind: str, error: Exception | None = None) -> None:
        self.kinds = frozenset({kind})
        self.heard: list[str] = []
        self.ended = False
        self._error = error

    async def run(self) -> None:
        try:
            if self._error is not None:
                raise self._error
            await asyncio.Event().wait()
        finally:
            self.ended = True

    def opened(self, welcome: pb.Welcome) -> None:
        self.heard.append(f"opened {welcome.run_id}")

    def lost(self) -> None:
        self.heard.append("lost")

    def received(self, message: pb.CoordinatorMessage) -> None:
        if message.punch.refused == "malformed":
            raise MalformedMessage("it is not a punch")
        self.heard.append(str(message.WhichOneof("body")))


def test_each_part_hears_of_the_session_and_of_its_own_messages() -> None:
    punching, checking = _Part("punch"), _Part("dial_back")
    meeting = Connectivity([punching, checking])
    meeting.opened(pb.Welcome(run_id="run"))
    assert meeting.received(pb.CoordinatorMessage(punch=pb.Punch(punch_id=1)))
    assert meeting.received(pb.CoordinatorMessage(dial_back=pb.DialBack(check_id=1)))
    assert not meeting.received(pb.CoordinatorMessage(stop=pb.Stop()))
    assert not meeting.received(pb.CoordinatorMessage())
    meeting.lost()
    assert punching.heard == ["opened run", "punch", "lost"]
    assert checking.heard == ["opened run", "dial_back", "lost"]


def test_what_is_malformed_is_the_callers_to_drop() -> None:
    with pytest.raises(MalformedMessage):
        Connectivity([_Part("punch")]).received(pb.CoordinatorMessage(punch=pb.Punch(refused="malformed")))


@pytest.mark.parametrize("error", [Unreachable("no router answers"), ValueError("a fault of ours")], ids=str)
async def test_a_part_that_fails_ends_alone(error: Exception) -> None:
    failing, working = _Part("punch", error), _Part("dial_back")
    running = asyncio.create_task(Connectivity([failing, working]).run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert failing.ended
    assert not working.ended
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert working.ended
