"""Run a minimal BitTorrent tracker over HTTP (BEP 3), which answers every announce with all other peers, compactly.

usage: python tracker.py ADDRESS
"""

from __future__ import annotations

import re
import socket
import struct
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

PORT = 6969
INTERVAL_S = 3


class Announce(BaseHTTPRequestHandler):
    """The handler of one announce; ``peers`` are all that announced since the process started."""

    peers: dict[tuple[str, int], None] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        """Answer an announce; any other request, such as a scrape, gets 404."""
        port = re.search(r"[?&]port=(\d+)", self.path)
        if port is None:
            self.send_error(404)
            return
        me = (self.client_address[0], int(port[1]))
        others = b"".join(
            socket.inet_aton(host) + struct.pack(">H", number) for host, number in self.peers if (host, number) != me
        )
        self.peers[me] = None
        body = b"d8:intervali%de12:min intervali%de5:peers%d:%se" % (INTERVAL_S, INTERVAL_S, len(others), others)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    HTTPServer((sys.argv[1], PORT), Announce).serve_forever()
