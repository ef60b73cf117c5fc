"""Run a libtorrent session driven by lines on stdin, in the interpreter that has libtorrent, so it imports only that.

usage: libtorrent_node.py TORRENT FOLDER ADDRESS stock|tuned seed|leech PEER...
The node prints "ready"; at "go" it adds the torrent and connects to each PEER; a leecher prints "done SECONDS" on the
system's monotonic clock once every piece is checked. The node ends at "quit".
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import libtorrent as lt

PORT = 6881
#: What its maintainer advises for few, fast, trusted peers.
TUNED = {
    "enable_incoming_utp": False,
    "enable_outgoing_utp": False,
    "unchoke_slots_limit": -1,
    "unchoke_interval": 1,
    "optimistic_unchoke_interval": 2,
    "connection_speed": 500,
    "smooth_connects": False,
    "peer_timeout": 20,
    "max_out_request_queue": 2000,
    "max_allowed_in_request_queue": 4000,
    "request_queue_time": 1,
    "send_buffer_watermark": 3 << 20,
    "send_buffer_low_watermark": 1 << 18,
    "aio_threads": 1,
    "hashing_threads": 1,
    "rate_limit_ip_overhead": False,
    "whole_pieces_threshold": 1,
    "close_redundant_connections": False,
    "out_enc_policy": 2,
    "in_enc_policy": 2,
}


def session(address: str, profile: str) -> Any:
    category = lt.alert.category_t
    settings: dict[str, Any] = {
        "listen_interfaces": f"{address}:{PORT}",
        "enable_dht": False,
        "enable_lsd": False,
        "enable_upnp": False,
        "enable_natpmp": False,
        "allow_multiple_connections_per_ip": True,
        "alert_mask": category.status_notification | category.error_notification,
    }
    return lt.session(settings | (TUNED if profile == "tuned" else {}))


def watch(one: Any) -> None:
    while True:
        one.wait_for_alert(1000)
        for alert in one.pop_alerts():
            if isinstance(alert, lt.torrent_finished_alert):
                print("done", time.monotonic(), flush=True)
                return


def main() -> None:
    torrent, folder, address, profile, role, *peers = sys.argv[1:]
    one = session(address, profile)
    parameters = lt.add_torrent_params()
    parameters.ti, parameters.save_path = lt.torrent_info(torrent), folder
    flags = lt.torrent_flags
    parameters.flags = flags.disable_pex | flags.disable_lsd | flags.disable_dht
    if role == "seed":
        parameters.flags |= flags.seed_mode
    print("ready", flush=True)
    sys.stdin.readline()
    handle = one.add_torrent(parameters)
    for peer in peers:
        handle.connect_peer((peer, PORT))
    if role == "leech":
        threading.Thread(target=watch, args=(one,), daemon=True).start()
    sys.stdin.readline()


if __name__ == "__main__":
    main()
