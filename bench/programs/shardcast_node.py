"""Run and time one shardcast node, in the interpreter that has shardcast, so it imports only that.

usage: shardcast_node.py origin|middle|client FOLDER SERVERS PAYLOAD
Every node prints "ready". The origin publishes at "go"; the others print "done SECONDS" on the system's monotonic clock
once the checksum of their copy is right. A node ends when stdin is closed. Three changes let shardcast finish here: its
server answers several requests at once, it polls for new versions every 0.2 s rather than 30 s, and it retries a poll
that failed.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from socketserver import ThreadingMixIn

import shardcast
import shardcast.client
import shardcast.server
from shardcast.utils import compute_checksum, parse_distribution_file

POLL_S = 0.2
VERSION = "v1"
PROBE_BYTES = 100_000  # size of the file that shardcast's bandwidth probe fetches from every server


def join(shards: Path, copy: Path) -> None:
    with copy.open("wb") as output:
        for name in sorted(os.listdir(shards)):
            with (shards / name).open("rb") as shard:
                shutil.copyfileobj(shard, output, 1 << 20)


def done() -> None:
    print("done", time.monotonic(), flush=True)


def relay(servers: list[str], data: Path, copy: Path) -> None:
    """Run a middle node, which verifies the joined shards as every receiver must."""
    node = shardcast.MiddleNode(servers, str(data), check_interval=POLL_S)
    print("ready", flush=True)
    while VERSION not in node.processed_versions:
        time.sleep(0.01)
    join(data / VERSION, copy)
    if (
        compute_checksum(str(copy))
        == parse_distribution_file(str(data / "distribution.txt"))[VERSION].partition("|")[0]
    ):
        done()


def receive(servers: list[str], folder: Path) -> None:
    node = shardcast.ClientNode(servers, str(folder))
    print("ready", flush=True)
    while VERSION not in node.list_available_versions():
        time.sleep(POLL_S)
    while not node.download_version(VERSION, str(folder / "payload")):  # a server may be too busy to list its versions
        time.sleep(POLL_S)
    done()


def main() -> None:
    role, name, servers, payload = sys.argv[1:]
    folder, data = Path(name), Path(name) / "data"
    shardcast.server.ShardcastServer = type(
        "Threaded", (ThreadingMixIn, shardcast.server.ShardcastServer), {"daemon_threads": True}
    )
    # The client writes its probe to one fixed path, which nodes on one machine would share.
    shardcast.client.Path = lambda path: folder / "probe.bin" if str(path) == "/tmp/dummy.bin" else Path(path)
    data.mkdir(parents=True, exist_ok=True)
    (data / "data1.bin").write_bytes(os.urandom(PROBE_BYTES))
    if role == "origin":
        node = shardcast.OriginServer(str(data))
        print("ready", flush=True)
        sys.stdin.readline()
        node.broadcast(payload)
    elif role == "middle":
        relay(servers.split(","), data, folder / "payload")
    else:
        receive(servers.split(","), folder)
    sys.stdin.read()
    os._exit(0)  # shardcast's threads do not end


if __name__ == "__main__":
    main()
