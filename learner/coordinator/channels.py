"""Channels to the coordinator at each of its addresses, one of which is used at a time."""

from __future__ import annotations

from typing import Any

import grpc

from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.grpc_client import open_channel
from rollcast.wire.proto import rollcast_pb2_grpc


class Channels:
    """One for each address that was tried; a channel connects again by itself, but with its own certificate only."""

    def __init__(self) -> None:
        self._enrolment: Enrolment | None = None
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[str, Any] = {}
        self._retired: list[grpc.aio.Channel] = []
        self._turn = 0
        self._answered = False  # the one in use, since the last failure
        self._refused: set[str] = set()
        self.stub: Any = None
        """The calls, at the address whose turn it is; None before ``connect``."""

    @property
    def all_refuse(self) -> bool:
        """Whether no address is left behind which the coordinator may be, since ``answered``."""
        return self._enrolment is not None and self._refused.issuperset(self._enrolment.grpc_addresses)

    def connect(self, enrolment: Enrolment) -> None:
        """Use the address whose turn it is, with this certificate.

        Channels of another one are kept until the end, because calls may still be under way on them.
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
        """A call was answered: this address is tried first from now on."""
        self._answered = True
        self._refused.clear()

    def failed(self, stub: Any, *, refused: bool) -> None:
        """A call failed: the next address's turn, unless this one has answered or another call has noticed before.

        Args:
            stub: on which the call was made.
            refused: whoever is there shows no certificate of the run, or takes none.
        """
        if stub is not self.stub or self._enrolment is None:
            return
        if refused:
            self._refused.add(self._address(self._enrolment))
        self._turn += not self._answered
        self._answered = False
        self.connect(self._enrolment)

    async def close(self) -> None:
        """Close all; calls under way are cancelled."""
        for channel in (*self._retired, *self._channels.values()):
            await channel.close(None)
        self._retired.clear()
        self._channels.clear()

    def _address(self, enrolment: Enrolment) -> str:
        return enrolment.grpc_addresses[self._turn % len(enrolment.grpc_addresses)]
