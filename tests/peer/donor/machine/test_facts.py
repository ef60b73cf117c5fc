from __future__ import annotations

import socket
from pathlib import Path

from peer.donor.machine.facts import Accelerator, look_at_machine
from tests.peer.donor.check.test_findings import MACHINE


def test_this_machine_has_what_every_machine_has(tmp_path: Path) -> None:
    found = look_at_machine(tmp_path / "not" / "there", link_host="127.0.0.1", link_port=0)
    assert found.memory_bytes >= found.memory_free_bytes > 0
    assert found.disk_free_bytes > 0
    assert found.cores >= 1
    assert found.engines["jax"] == found.packages["jax"]
    assert not found.link_port_taken
    assert not (tmp_path / "not").exists()


def test_a_port_that_is_taken_is_seen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert look_at_machine(tmp_path, link_host="127.0.0.1", link_port=port).link_port_taken
    assert not look_at_machine(tmp_path, link_host="127.0.0.1", link_port=port).link_port_taken


def test_it_computes_in_the_memory_of_its_accelerator() -> None:
    assert MACHINE.compute_memory_bytes == MACHINE.memory_bytes
    from dataclasses import replace

    device = replace(MACHINE, accelerators=(Accelerator("H", 100, 60),))
    assert (device.compute_memory_bytes, device.compute_memory_free_bytes) == (100, 60)
