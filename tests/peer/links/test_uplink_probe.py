from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from peer.links.transport import Link, LinkMeasurement
from peer.links.uplink_probe import run_probe
from rollcast.wire.limits import PADDING_BYTES_MAX, PROBE_BYTES_MAX
from rollcast.wire.proto import rollcast_pb2 as pb


class Uplink:
    """A link of a given rate, on a clock that advances as far as the probe sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bytes_per_second: float) -> None:
        self.now = 0.0
        self.sent_bytes = 0
        self.left_bytes = 0.0
        self.most_unsent = 0.0
        self._bytes_per_second = bytes_per_second
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    def time(self) -> float:
        self.now += 1e-6
        return self.now

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.left_bytes = min(self.sent_bytes, self.left_bytes + seconds * self._bytes_per_second)

    def send(self, message: pb.LinkMessage) -> None:
        assert len(message.padding.zeros) == PADDING_BYTES_MAX
        self.sent_bytes += PADDING_BYTES_MAX
        self.most_unsent = max(self.most_unsent, self.sent_bytes - self.left_bytes)

    def measure(self) -> LinkMeasurement:
        return LinkMeasurement(0.0, int(self.sent_bytes - self.left_bytes), "")


def run(uplink: Uplink, **bounds: Any) -> float:
    work = run_probe(cast(Link, uplink), **bounds)
    with pytest.raises(StopIteration) as done:
        work.send(None)  # nothing in it really waits
    return cast(float, done.value.value)


@pytest.mark.parametrize("bytes_per_second", [1e6, 20e6])
def test_an_uplink_is_measured_with_little_in_flight(monkeypatch: pytest.MonkeyPatch, bytes_per_second: float) -> None:
    uplink = Uplink(monkeypatch, bytes_per_second)
    assert run(uplink, bytes_max=8 << 20, seconds_max=2.0) == pytest.approx(bytes_per_second, rel=0.2)
    assert uplink.now <= 2.1
    assert uplink.most_unsent <= 5 * PADDING_BYTES_MAX


def test_no_probe_is_longer_or_larger_than_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Uplink(monkeypatch, 1e12)
    run(fast, bytes_max=1 << 40, seconds_max=1e9)
    assert fast.sent_bytes == PROBE_BYTES_MAX
    slow = Uplink(monkeypatch, 1000.0)
    run(slow, bytes_max=1 << 40, seconds_max=1e9)
    assert slow.now <= 5.1
