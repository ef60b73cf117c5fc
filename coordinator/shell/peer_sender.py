"""What the core wants peers to be told, as messages into their sessions."""

from __future__ import annotations

from typing import assert_never

from coordinator.core.events.actions import (
    EndSession,
    RefuseSession,
    RevokeLeases,
    SendLeases,
    SendPlan,
    SendProbe,
    SendToPeer,
    StopPeer,
    TellActivation,
)
from coordinator.shell.fan_out import FanOut
from coordinator.shell.messages import activation_message, leases_message, plan_message, probe_message, revoke_message
from coordinator.shell.sessions import Sessions
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

ToPeer = (
    SendLeases
    | RevokeLeases
    | SendPlan
    | SendProbe
    | SendToPeer
    | TellActivation
    | StopPeer
    | EndSession
    | RefuseSession
)


class PeerSending:
    """Whoever makes one must ``close`` it."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._fan_out = FanOut(sessions.send)

    def send(self, action: ToPeer) -> None:
        """Carry an action out; a peer without a session is not told."""
        match action:
            case SendLeases():
                self._sessions.send(action.peer_id, leases_message(action))
            case RevokeLeases():
                self._sessions.send(action.peer_id, revoke_message(action))
            case SendPlan():
                self.later(action.peer_id, plan_message(action))
            case SendProbe():
                self._sessions.send(action.peer_id, probe_message(action))
            case SendToPeer():
                self._sessions.send(action.peer_id, action.message)
            case TellActivation():
                self._sessions.send(action.peer_id, activation_message(action))
            case StopPeer():
                self._sessions.stop(action.peer_id, action.reason)
            case EndSession():
                self._sessions.end(action.peer_id, action.reason)
            case RefuseSession():
                self._sessions.refuse(action.peer_id, action.code, action.what, action.fix)
            case _:
                assert_never(action)

    def later(self, peer_id: PeerId, message: pb.CoordinatorMessage) -> None:
        """Send what many are sent at once a little at a time."""
        self._fan_out.send(peer_id, message)

    def close(self) -> None:
        """Forget what is still to be sent."""
        self._fan_out.close()
