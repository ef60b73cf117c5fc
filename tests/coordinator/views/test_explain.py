from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.ledger.sqlite import Ledger
from coordinator.views.explain import explain
from rollcast.runtime.errors import MalformedMessage
from rollcast.runtime.run_folder import RunFolder


async def test_an_event_is_told_with_what_came_before_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    ledger = Ledger.open(folder.ledger)
    await ledger.record_version(0, 3, b"announcement")  # type: ignore[arg-type]
    await ledger.record_event("peer_joined", "12D3a", "ada as peer", cause="peer 12D3a")
    await ledger.record_event("other", "12D3b", "nothing to do with it", cause="peer 12D3b")
    await ledger.record_event("standby", "12D3a", "off: too dear", cause="version 3")
    found = explain(folder, "event", "3")
    assert found.title == "event 3: standby"
    assert found.facts["name"] == "ada"
    assert [one.text for one in found.lines] == [
        "announced in epoch 0",
        "peer joined (ada): ada as peer",
        "standby (ada): off: too dear",
    ]
    peer = explain(folder, "peer", "ada")
    assert peer.title == "peer ada"
    assert "standby (12D3a): off: too dear (because of version 3)" in [one.text for one in peer.lines]
    await ledger.close()


@pytest.mark.parametrize(
    ("of", "words"), [("event", "9"), ("event", "x"), ("event", "9" * 40), ("lease", "1"), ("peer", "a b/c")]
)
async def test_what_is_not_known_is_refused(tmp_path: Path, of: str, words: str) -> None:
    folder = RunFolder(tmp_path)
    ledger = Ledger.open(folder.ledger)
    with pytest.raises(MalformedMessage):
        explain(folder, of, words)  # type: ignore[arg-type]
    await ledger.close()
