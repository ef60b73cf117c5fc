from __future__ import annotations

from pathlib import Path

import pytest

from peer.donor.install.join import PeerPaths
from peer.donor.install.leave import clear_up


@pytest.fixture
def places(tmp_path: Path) -> PeerPaths:
    """State as a peer leaves it, and a file of somebody else's in the same folder."""
    here = PeerPaths(tmp_path / "peer.toml", tmp_path / "state")
    for name in ("versions/run-1/5", "cache/jax", "logs", "receipts"):
        (here.state_folder / name).mkdir(parents=True)
    for name in ("identity.key", "credentials.pem", "invite.txt", "donor.json", "lock", "my-photos.tar"):
        (here.state_folder / name).write_text("x")
    here.config_file.write_text("x")
    return here


def left(places: PeerPaths) -> list[str]:
    return sorted(path.name for path in places.state_folder.iterdir())


def test_who_it_is_and_what_it_did_stay(places: PeerPaths) -> None:
    gone = clear_up(places, forget_identity=False)
    assert left(places) == ["identity.key", "my-photos.tar", "receipts"]
    assert places.config_file.exists()
    assert len(gone) == 7
    assert clear_up(places, forget_identity=False) == []


def test_for_good(places: PeerPaths) -> None:
    clear_up(places, forget_identity=True)
    assert left(places) == ["my-photos.tar"]  # what is not ours is nobody's to remove
    assert not places.config_file.exists()
    (places.state_folder / "my-photos.tar").unlink()
    clear_up(places, forget_identity=True)
    assert not places.state_folder.exists()


def test_a_link_is_removed_and_what_it_points_to_is_not(places: PeerPaths, tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk2"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    (places.state_folder / "tokenizers").symlink_to(elsewhere)
    clear_up(places, forget_identity=False)
    assert (elsewhere / "precious").exists()
    assert not (places.state_folder / "tokenizers").is_symlink()
