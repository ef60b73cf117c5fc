"""Keep channels to the coordinator at each of its addresses, of which one is used at a time."""

from __future__ import annotations

from typing import Any

import grpc

from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.grpc_client import open_channel
from rollcast.wire.proto import rollcast_pb2_grpc


class Channels:
    """The channels, one per address tried. A channel reconnects by itself, but only with its own certificate."""

    def __init__(self) -> None:
        self._enrolment: Enrolment | None = None
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[str, Any] = {}
        self._retired: list[grpc.aio.Channel] = []
        self._turn = 0
        self._answered = False  # whether the channel in use has answered since the last failure
        self._refused: set[str] = set()
        self.stub: Any = None
        """The stub for the address in use; None before ``connect``."""

    @property
    def all_refuse(self) -> bool:
        """Whether every address has refused since the last answer, so that none is left to try."""
        return self._enrolment is not None and self._refused.issuperset(self._enrolment.grpc_addresses)

    def connect(self, enrolment: Enrolment) -> None:
        """Use the address whose turn it is, with this enrolment's certificate.

        Channels with an older certificate stay open until ``close``, because calls may still be in flight on them.
        """
        if enrolment is not self._enrolment:
            self._retired += self._channels.values()
            self._channels, self._stubs, self._enrolment = {}, {}, enrolment
        address = self._address(enrolment)
        if address not in self._channels:
            channel = self._channels[address] = open_channel(address, enrolment.credentials)
            self._stubs[address] = rollcast_pb2_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]
        self.stub = self._stubs[address]

    def answered(self) -> None:
        """Record an answer: this address is tried first from now on."""
        self._answered = True
        self._refused.clear()

    def failed(self, stub: Any, *, refused: bool) -> None:
        """Record a failed call, and move to the next address unless this one has answered before.

        Args:
            stub: stub on which the call was made; a failure on a stub that is no longer in use is ignored.
            refused: whether the server has no certificate of the run, or does not accept the learner's.
        """
        if stub is not self.stub or self._enrolment is None:
            return
        if refused:
            self._refused.add(self._address(self._enrolment))
        self._turn += not self._answered
        self._answered = False
        self.connect(self._enrolment)

    async def close(self) -> None:
        """Close all channels; calls in flight are cancelled."""
        for channel in (*self._retired, *self._channels.values()):
            await channel.close(None)
        self._retired.clear()
        self._channels.clear()

    def _address(self, enrolment: Enrolment) -> str:
        return enrolment.grpc_addresses[self._turn % len(enrolment.grpc_addresses)]
