from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peer.config import PeerConfig
from peer.donor.control.commands import LimitsCommand
from peer.donor.control.limits import OwnerLimitsBook
from rollcast.runtime.errors import ConfigError, MalformedMessage


class World:
    def __init__(self, folder: Path) -> None:
        self.book = OwnerLimitsBook(PeerConfig(state_folder=folder))
        self.taken_up = 0
        self.command = LimitsCommand(self.book, self._changed)

    def _changed(self) -> None:
        self.taken_up += 1


def test_they_are_shown_set_and_reset(tmp_path: Path) -> None:
    world = World(tmp_path)
    shown = world.command({"do": "limits"})
    assert (shown["limits"]["upload_mbit_s_max"], shown["changed"], shown["at_restart"]) == (None, [], [])
    assert world.taken_up == 0
    reply = world.command({"do": "limits", "set": {"upload_mbit_s_max": 3, "vram_share_max": 0.5}})
    assert reply["limits"]["upload_mbit_s_max"] == 3.0
    assert (reply["changed"], reply["at_restart"]) == (["upload_mbit_s_max", "vram_share_max"], ["vram_share_max"])
    assert world.command({"do": "limits", "reset": ["vram_share_max"]})["at_restart"] == []
    assert world.command({"do": "limits", "reset": True})["changed"] == []
    assert world.taken_up == 3


@pytest.mark.parametrize("values", [{"set": 3}, {"reset": "all"}, {"set": {}, "reset": []}, {"reset": False}])
def test_what_is_no_request_is_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    world = World(tmp_path)
    with pytest.raises(MalformedMessage):
        world.command({"do": "limits", **values})
    with pytest.raises(ConfigError):
        world.command({"do": "limits", "set": {"quota_reset_day": 40}})
    assert world.taken_up == 0
