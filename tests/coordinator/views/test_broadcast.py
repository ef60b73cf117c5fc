from __future__ import annotations

import msgspec

from coordinator.core.status.broadcast import build_broadcast_status
from coordinator.views.broadcast import build_broadcast
from coordinator.views.relay_tree import Shape
from coordinator.views.versions import VersionHistory
from tests.coordinator.views.viewed import NOW, core


def test_it_is_the_status_with_the_tree_and_the_versions_before() -> None:
    found = core("a", "b")
    view = build_broadcast(found.state, Shape(), VersionHistory(), now=NOW, unix_s=3.0)
    plain = msgspec.json.decode(msgspec.json.encode(view))
    status = msgspec.json.decode(msgspec.json.encode(build_broadcast_status(found.state, now=NOW)))
    assert status.items() <= plain.items()
    assert set(plain) - set(status) == {"tree", "history", "slowest_branch", "at_unix_s"}
    assert [one["version"] for one in plain["history"]] == [0]
    assert {one["name"] for one in plain["tree"]["nodes"]} == {"origin", "a", "b"}
