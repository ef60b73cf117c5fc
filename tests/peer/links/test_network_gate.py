from __future__ import annotations

from peer.links.gate import NetworkGate


def test_who_may_not_send_still_has_links() -> None:
    assert NetworkGate().links
    assert NetworkGate(send=False, reason="quota").links
    assert not NetworkGate(receive=False, reason="paused").links
