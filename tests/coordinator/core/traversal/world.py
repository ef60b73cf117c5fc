"""Make a core with members behind routers of all kinds, for the tests of how members reach each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.core.events.actions import Action, SendToPeer
from coordinator.core.events.events import Event
from coordinator.core.events.reach_events import ReachabilityTold
from coordinator.core.reach.address_book import Reach
from coordinator.core.reach.dial_settings import DialBackSettings
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.coordinator.core_world import World, joined, only


class ReachWorld(World):
    """An origin that can be dialled. Peers cannot, unless an address is given; the host of each follows its name."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(**({"heartbeat_timeout_s": 1e6, "dial_backs": DialBackSettings()} | changes))
        self.handle(replace(joined("origin", role="origin"), host="192.0.2.1"))
        self._hosts: dict[str, str] = {}

    def join(self, name: str, *, address: str = "", site: str = "") -> list[Action]:
        """Join from the member's host, which ``{host}`` in the address stands for."""
        host = self._hosts.setdefault(name, f"198.51.100.{len(self._hosts) + 1}")
        return self.handle(replace(joined(name, address=address.format(host=host)), host=host, site=site))

    def say(self, name: str, nat: str, *, punches: bool = True, **changes: Any) -> list[Action]:
        """Report what a peer behind such a router finds out; it joins first if it is not connected."""
        if self.core.state.members.get(PeerId(name)) is None:
            self.join(name)
        known_port = punches and nat not in ("symmetric", "unknown")
        event = ReachabilityTold(PeerId(name), nat, self.punch_address(name) if known_port else "")
        return self.handle(replace(event, **changes))

    def punch_address(self, name: str) -> str:
        return f"{self._hosts[name]}:7000"

    def reach(self, name: str) -> Reach:
        return self.core.state.reach.of(PeerId(name))

    def messages_after(self, event: Event) -> dict[str, pb.CoordinatorMessage]:
        """Return the last message that each member is sent because of this event."""
        return {one.peer_id: one.message for one in only(self.handle(event), SendToPeer)}
