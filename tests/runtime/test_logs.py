from __future__ import annotations

import json
from pathlib import Path

import structlog

from rollcast.runtime.logs import configure_logging


def test_json_lines_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "peer.log"
    configure_logging("peer", log_file=file)
    structlog.get_logger().info("joined", invite="rollcast1-abc", join_token="abc", tokens=3, public_key="ff")
    (entry,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert entry["event"] == "joined"
    assert entry["role"] == "peer"
    assert entry["invite"] == entry["join_token"] == "[redacted]"
    assert (entry["tokens"], entry["public_key"]) == (3, "ff")
