"""Translate addresses as a home's router does: the table of nat.c, which the emulator contains too, by itself."""

from __future__ import annotations

import ctypes
import functools
import socket
import sys
from types import TracebackType
from typing import Literal, get_args

from bench.wan import build
from bench.wan.scenarios import Nat

Protocol = Literal["tcp", "udp"]
_NUMBERS = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}
FLOWS_MAX = 1024
FIN, SYN, RST = 1, 2, 4


class NatTable:
    """One router's table. Use as a context manager.

    Addresses and ports are integers; times are seconds of the caller's clock.

    Args:
        kind: kind of router, which decides what it maps and lets in; see nat.h.
        seed: seed of the random choice of outside ports.

    Raises:
        MissingExtra: gcc cannot compile it.
    """

    def __init__(self, kind: Nat, seed: int = 1) -> None:
        self._library = _library()
        self._table = self._library.nat_new(get_args(Nat).index(kind), seed)
        if not self._table:
            raise MemoryError

    def __enter__(self) -> NatTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.nat_free(self._table)
        self._table = None

    def out(self, protocol: Protocol, inside: int, remote: tuple[int, int], now_s: float, flags: int = 0) -> int:
        """Return the outside port under which a packet from an inside port leaves; 0 if the table is full."""
        return int(
            self._library.nat_out(self._table, _NUMBERS[protocol], inside, *remote, flags, int(now_s * 1_000_000_000))
        )

    def into(self, protocol: Protocol, outside: int, remote: tuple[int, int], now_s: float, flags: int = 0) -> int:
        """Return the inside port that a packet to an outside port is for; 0 if the router does not let it in."""
        return int(
            self._library.nat_in(self._table, _NUMBERS[protocol], outside, *remote, flags, int(now_s * 1_000_000_000))
        )

    def become(self, kind: Nat) -> None:
        """Change the kind of router; existing flows stay."""
        self._library.nat_become(self._table, get_args(Nat).index(kind))

    def forget(self, remote_ip: int) -> None:
        """Discard all flows with one remote address."""
        self._library.nat_forget(self._table, remote_ip)

    def flows(self, now_s: float) -> int:
        """Return the number of live flows."""
        return int(self._library.nat_flows(self._table, int(now_s * 1_000_000_000)))

    def rewrite(
        self, direction: Literal["out", "in"], packet: bytes, new_ip: bytes, now_s: float, *, partial: bool = False
    ) -> bytes | None:
        """Return an IPv4 packet with its source (out) or destination (in) translated, or None if it is dropped.

        Args:
            new_ip: 4 bytes: the outside address on the way out, the inside one on the way in.
            partial: whether the transport checksum covers only the pseudo-header.
        """
        buffer = ctypes.create_string_buffer(packet, max(1, len(packet)))
        call = self._library.nat_rewrite_out if direction == "out" else self._library.nat_rewrite_in
        address = int.from_bytes(new_ip, sys.byteorder)
        if not call(self._table, buffer, len(packet), partial, address, int(now_s * 1_000_000_000)):
            return None
        return buffer.raw[: len(packet)]


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build.nat_library()))
    table, port, word, number, moment = (
        ctypes.c_void_p,
        ctypes.c_uint16,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_int64,
    )
    library.nat_new.argtypes, library.nat_new.restype = [number, word], table
    library.nat_free.argtypes, library.nat_free.restype = [table], None
    for call in (library.nat_out, library.nat_in):
        call.argtypes, call.restype = [table, number, port, word, port, number, moment], port
    library.nat_become.argtypes, library.nat_become.restype = [table, number], None
    library.nat_forget.argtypes, library.nat_forget.restype = [table, word], None
    library.nat_flows.argtypes, library.nat_flows.restype = [table, moment], number
    for call in (library.nat_rewrite_out, library.nat_rewrite_in):
        call.argtypes, call.restype = [table, ctypes.c_char_p, word, number, word, moment], number
    return library
