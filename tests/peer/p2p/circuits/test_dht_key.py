from __future__ import annotations

from peer.p2p.circuits.dht_key import run_key


def test_each_run_has_a_key_of_its_own_which_is_a_multihash() -> None:
    keys = {run_key("run-1", b"ca"), run_key("run-2", b"ca"), run_key("run-1", b"another")}
    assert len(keys) == 3
    assert all(key[:2] == b"\x12\x20" and len(key) == 34 for key in keys)
