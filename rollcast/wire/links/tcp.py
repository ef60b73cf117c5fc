"""Set the TCP options of chunk links and read the kernel's figures of them.

Only Linux has all of these options and figures; on other systems the defaults stay and the figures are 0.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import socket
import struct
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rollcast.runtime.errors import ConfigError
from rollcast.wire.links.congestion import BBR, PathFigures
from rollcast.wire.links.queue_limit import QueueFigures

# Bytes that the kernel takes before it has begun to send them. Few, so that the next chunk is chosen late; see
# set_unsent_bytes for fast links.
_NOTSENT_LOWAT_BYTES = 16 << 10
# Of the receive window, from the start. Since Linux 6.16 a window grows by what is read in a round trip less what still
# lay unread when reading began (tcp_rcv_space_adjust): a process that sleeps until most of it has come, as a link does
# for the rest of a chunk, keeps the 64 KiB that connections begin with. From sixteen times the longest such sleep it
# grows.
WINDOW_BYTES = 4 << 20
"""The receive window that every link begins with."""
_WINDOW_BYTES_MOST = 256 << 20  # 25 Gbit/s over 80 ms; the kernel's own bound is in net.ipv4.tcp_rmem
# <asm-generic/socket.h>, <linux/tcp.h> and <linux/sockios.h>; the socket module lacks them.
_SO_MAX_PACING_RATE = 47
_TCP_NOTSENT_LOWAT = 25
_SIOCOUTQ, _SIOCOUTQNSD = 0x5411, 0x894B
_CONGESTION_NAME_BYTES = 16
# struct tcp_info of <linux/tcp.h>: the smoothed RTT in microseconds at 68, segments sent again at 100, the smallest RTT
# at 148, segments with data at 156, microseconds with data to send at 168, those of them in which the receiver's window
# was full at 176, and segments that were sent again although they had arrived (RFC 2883) at 216.
_TCP_INFO_BYTES = 220
_ACKNOWLEDGED = struct.Struct("=120xQ")  # of the same, since Linux 4.1
# Of the same: bytes of a segment, the smoothed RTT, the smallest one, bytes delivered a second.
_DELIVERY = struct.Struct("=16xI48xI76xI8xQ")
_TCP_INFO = struct.Struct("=68xI28xI44xI4xI8xQQ32xI")
_OFFERED = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_LINUX = sys.platform == "linux"


AUTO = "auto"
UNCAPPED = 10_000_000_000 // 8
"""Bytes per second of a link from which a cap is none: no single link of a process reaches it."""


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """The options of a link's socket.

    Args:
        silence_timeout_s: time without an acknowledgement after which a host is given up, even if nothing is sent.
        congestion_control: the name of the algorithm; empty for the system's; AUTO for the system's, and BBR where it
            does better (see rollcast.wire.links.congestion).
        pacing_bytes_per_second: the most that one link sends, paced by TCP itself; 0 for neither. From UNCAPPED on it
            is no cap, and only paths that are far enough are paced (see rollcast.wire.links.steering).
    """

    silence_timeout_s: float = 30.0
    congestion_control: str = ""
    pacing_bytes_per_second: int = UNCAPPED


@dataclass(frozen=True, slots=True)
class SocketFigures:
    """The kernel's figures of a connection.

    Args:
        rtt_s: the smallest round-trip time seen lately, in seconds; 0 if it is unknown.
        unsent_bytes: bytes that the kernel has taken and not sent even once.
        lost_share: the share of segments that were lost lately; 0 if none was or it is unknown.
        window_limited_share: the share of the time with bytes to send in which the other end's window was full.
    """

    rtt_s: float = 0.0
    unsent_bytes: int = 0
    lost_share: float = 0.0
    window_limited_share: float = 0.0


def tune(sock: socket.socket, options: SocketOptions) -> str:
    """Set a connected socket up for a link.

    Returns:
        The name of the congestion control that the socket uses; empty if the system does not report it.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if not _LINUX:
        return ""
    probe_s = max(1, int(options.silence_timeout_s / 4))
    for option, value in (
        (socket.TCP_KEEPIDLE, probe_s),
        (socket.TCP_KEEPINTVL, probe_s),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, int(options.silence_timeout_s * 1000)),
        (_TCP_NOTSENT_LOWAT, _NOTSENT_LOWAT_BYTES),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    open_window(sock, WINDOW_BYTES)
    if options.congestion_control and options.congestion_control != AUTO:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, options.congestion_control.encode())
    if 0 < options.pacing_bytes_per_second < UNCAPPED:
        pace(sock, options.pacing_bytes_per_second)
    return _congestion_control(sock)


def pace(sock: socket.socket, bytes_per_second: int) -> None:
    """Turn on TCP's own pacing with a ceiling; the kernel never turns it off again."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", bytes_per_second))


def _congestion_control(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONGESTION_NAME_BYTES).rstrip(b"\0").decode()


def use_congestion_control(sock: socket.socket, name: str) -> str:
    """Change the congestion control of an open connection, if the kernel allows it.

    Returns:
        The name of the one that is in use now.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    return _congestion_control(sock)


@cache
def bbr_problem() -> str:
    """Return why sockets of this process cannot use BBR, in words; empty if they can."""
    try:
        check_congestion_control(BBR)
    except ConfigError as error:
        return error.cause or error.what
    return ""


def check_congestion_control(name: str) -> None:
    """Check that sockets of this process may use a congestion control; an empty name is the system's.

    Raises:
        ConfigError: the kernel refuses it, or the system offers no choice.
    """
    if name in ("", AUTO):
        return
    if not _LINUX:
        raise ConfigError("congestion control cannot be chosen on this system", fix="leave link.congestion empty")
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as error:
            offered = ", ".join(_OFFERED.read_text().split()) if _OFFERED.exists() else "unknown"
            why = "only for root here" if error.errno == errno.EPERM else "the kernel does not have it"
            raise ConfigError(
                f"congestion control {name!r} cannot be used",
                cause=f"{why}; it offers {offered}",
                fix='set link.congestion to one of these, to "auto", or leave it empty for the system\'s choice',
            ) from None


def set_wake_bytes(sock: socket.socket, size_bytes: int) -> None:
    """Let the socket become readable only when ``size_bytes`` wait in it, or when no more can come."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)


def set_unsent_bytes(sock: socket.socket, size_bytes: int) -> None:
    """Let the kernel take this many bytes before it has begun to send them, but no fewer than at first."""
    if _LINUX and sock.fileno() >= 0:
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, max(size_bytes, _NOTSENT_LOWAT_BYTES))


def open_window(sock: socket.socket, size_bytes: int, wake_bytes: int = 1) -> None:
    """Let the other end send this many bytes ahead of what is read, within the kernel's bound; it may grow further."""
    # The kernel makes room for the bytes that shall wait (tcp_set_rcvlowat), within tcp_rmem, and keeps it; SO_RCVBUF
    # would end all growth.
    set_wake_bytes(sock, size_bytes)
    set_wake_bytes(sock, wake_bytes)


def window_bytes_for(bytes_per_second: float, rtt_s: float) -> int:
    """Return the receive window for a link that carries so much: twice the product, because a full window halts it.

    It is a power of two, and never smaller than the window that a link begins with.
    """
    wanted = int(2 * bytes_per_second * rtt_s)
    return min(_WINDOW_BYTES_MOST, max(WINDOW_BYTES, 1 << (wanted - 1).bit_length() if wanted else 0))


def set_receive_bytes(sock: socket.socket, size_bytes: int) -> None:
    """Limit the bytes that the kernel receives ahead of this process to about this; the default is megabytes."""
    # The kernel doubles it for its own bookkeeping (socket(7)), of which full segments need little.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes // 2 if _LINUX else size_bytes)


def measure(sock: socket.socket) -> SocketFigures:
    """Return the kernel's figures of a connection; zeros if the system has none or the socket is closed."""
    if not (info := _tcp_info(sock, _TCP_INFO_BYTES)):
        return SocketFigures()
    path, busy_us, limited_us = _parse(info)
    limited_share = limited_us / busy_us if busy_us else 0.0
    unsent_bytes = _queued_bytes(sock, _SIOCOUTQNSD)
    return SocketFigures(path.least_rtt_s or path.rtt_s, unsent_bytes, window_limited_share=limited_share)


def measure_queue(sock: socket.socket) -> QueueFigures:
    """Return what a connection has to send and how fast it delivers; zeros as for ``measure``."""
    if not (info := _tcp_info(sock, _DELIVERY.size)):
        return QueueFigures()
    segment_bytes, smoothed_us, smallest_us, rate = _DELIVERY.unpack(info.ljust(_DELIVERY.size, b"\0"))
    unacknowledged = _queued_bytes(sock, _SIOCOUTQ)
    return QueueFigures(unacknowledged, _seconds(smallest_us), smoothed_us / 1e6, float(rate), segment_bytes)


def _queued_bytes(sock: socket.socket, request: int) -> int:
    """Return the bytes that wait in the kernel, by the ioctl that counts them; 0 if the system does not report them."""
    if not _LINUX or sock.fileno() < 0:
        return 0
    queued = array.array("i", [0])
    try:
        fcntl.ioctl(sock.fileno(), request, queued)
    except OSError:
        return 0
    return queued[0]


def acknowledged_bytes(sock: socket.socket) -> int | None:
    """Return the bytes that the other end has acknowledged; None if the system does not tell, or after closing."""
    info = _tcp_info(sock, _ACKNOWLEDGED.size)
    return int(_ACKNOWLEDGED.unpack(info)[0]) if len(info) == _ACKNOWLEDGED.size else None


def measure_path(sock: socket.socket) -> PathFigures:
    """Return how many segments a connection has lost, and its round trips; zeros as for ``measure``."""
    info = _tcp_info(sock, _TCP_INFO_BYTES)
    return _parse(info)[0] if info else PathFigures()


def _tcp_info(sock: socket.socket, size_bytes: int) -> bytes:
    """Return the beginning of a socket's struct tcp_info; empty if the system has none or the socket is closed."""
    if not _LINUX or sock.fileno() < 0:
        return b""
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size_bytes)
    except OSError:
        return b""


def _parse(info: bytes) -> tuple[PathFigures, int, int]:
    """Return the figures in a struct tcp_info, the busy time and the window-limited time; an older kernel has fewer."""
    smoothed_us, again, smallest_us, sent, busy_us, limited_us, in_vain = _TCP_INFO.unpack(
        info.ljust(_TCP_INFO_BYTES, b"\0")
    )
    path = PathFigures(sent, max(0, again - in_vain), smoothed_us / 1e6, _seconds(smallest_us))
    return path, busy_us, limited_us


def _seconds(smallest_rtt_us: int) -> float:
    return smallest_rtt_us / 1e6 if smallest_rtt_us < 0xFFFFFFFF else 0.0
