"""Test joining and leaving a run: which files are written, and which are removed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.config import PeerConfig
from peer.donor.control.saved_state import SavedState
from peer.donor.install.join import (
    ListenSettings,
    PeerPaths,
    is_on_this_machine,
    machine_name,
    new_configuration,
    peer_invite,
    peer_paths,
    write_configuration,
)
from peer.donor.install.leave import clear_up
from peer.limits.decide import OwnerRequest
from peer.limits.quota import MonthUse
from rollcast.runtime.config import load_config
from rollcast.runtime.errors import ConfigError, JoinRefused
from rollcast.wire.ids import Role, RunId
from rollcast.wire.joining.invite import Invite


def invite(role: Role = "peer", address: str = "run.example:7400") -> Invite:
    return Invite(RunId("run-1"), role, "https://run.example:7443", address, "a" * 64, "b" * 64, "the-token")


def places(folder: Path) -> PeerPaths:
    return PeerPaths(folder / "config" / "peer.toml", folder / "state")


def test_a_new_configuration_is_valid_and_its_secret_is_elsewhere(tmp_path: Path) -> None:
    here, text = places(tmp_path), invite().encode()
    config = write_configuration(here, f" {text}\n", name=None, listening=ListenSettings("0.0.0.0", 7420, "none"))
    assert config.name == machine_name()
    assert (config.state_folder, config.invite_file) == (here.state_folder, here.invite_file)
    assert (config.link.host, config.link.port, config.link.advertise) == ("0.0.0.0", 7420, "none")
    assert here.invite_file.read_text() == f"{text}\n"
    assert here.invite_file.stat().st_mode & 0o777 == 0o600
    assert text not in here.config_file.read_text()


def test_a_new_configuration_names_the_interpreter_that_has_vllm(tmp_path: Path) -> None:
    here, python = places(tmp_path), Path("/venv/bin/python")
    config = write_configuration(here, invite().encode(), name="shed", listening=ListenSettings(), engine_python=python)
    assert (config.engine.python, config.engine.chosen_kind) == (python, "vllm")


def test_joining_again_keeps_the_owners_settings(tmp_path: Path) -> None:
    here = places(tmp_path)
    write_configuration(here, invite().encode(), name="shed", listening=ListenSettings())
    written = here.config_file.read_text()
    own = f"{written}# my own words\nupload_gb_month = 5\n"
    here.config_file.write_text(own)
    write_configuration(here, "rollcast1-newer", name=None, listening=ListenSettings("0.0.0.0", 1, ""))
    assert "# my own words" in here.config_file.read_text()
    config = load_config(here.config_file, PeerConfig)
    assert (config.name, config.limits.upload_gb_month, config.link.port) == ("shed", 5.0, 0)
    assert here.invite_file.read_text() == "rollcast1-newer\n"
    assert write_configuration(here, "rollcast1-newer", name="attic", listening=ListenSettings()).name == "attic"
    assert "# my own words" in here.config_file.read_text()


def test_an_invite_in_the_configuration_gives_way_to_the_file(tmp_path: Path) -> None:
    here = places(tmp_path)
    here.config_file.parent.mkdir()
    here.config_file.write_text(
        f'invite = "rollcast1-old"  # pasted\nstate_folder = "{here.state_folder}"\n[link]\nport = 5\n'
    )
    config = write_configuration(here, "rollcast1-newer", name=None, listening=ListenSettings())
    assert config.invite.get_secret_value() == ""
    assert config.invite_file == here.invite_file
    assert config.link.port == 5
    assert "rollcast1-old" not in here.config_file.read_text()


def test_a_configuration_that_cannot_be_changed_by_line_is_left_alone(tmp_path: Path) -> None:
    here = places(tmp_path)
    here.config_file.parent.mkdir()
    text = f'state_folder = "{here.state_folder}"\nname = """\nshed"""\n'
    here.config_file.write_text(text)
    with pytest.raises(ConfigError, match="by hand"):
        write_configuration(here, "rollcast1-newer", name="attic", listening=ListenSettings())
    assert here.config_file.read_text() == text


def test_a_wrong_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    here = places(tmp_path)
    with pytest.raises(ConfigError, match="name"):
        write_configuration(here, "rollcast1-x", name="no spaces please", listening=ListenSettings())
    assert not here.config_file.exists()
    assert not here.invite_file.exists()


def test_a_configuration_has_one_state_folder(tmp_path: Path) -> None:
    config, state = tmp_path / "peer.toml", tmp_path / "state"
    assert peer_paths(config, state) == PeerPaths(config, state)
    config.write_text(f'state_folder = "{tmp_path}/other"\n')
    assert peer_paths(config, state).state_folder == tmp_path / "other"
    with pytest.raises(ConfigError, match="--state"):
        peer_paths(config, state, state_given=True)
    config.write_text('state_folder = "relative"\n')
    with pytest.raises(ConfigError, match="relative"):
        peer_paths(config, state)


@pytest.mark.parametrize("role", ["origin", "learner"])
def test_an_invite_for_another_role_is_refused(role: Role) -> None:
    assert peer_invite(invite().encode()).token == "the-token"
    with pytest.raises(JoinRefused, match=f"role {role}"):
        peer_invite(invite(role).encode())


@pytest.mark.parametrize(
    ("address", "here"), [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("10.0.0.1:1", False)]
)
def test_whether_the_run_is_on_this_machine(address: str, here: bool) -> None:
    assert is_on_this_machine(invite(address=address)) == here


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_any_path_can_stand_in_a_configuration(word: str) -> None:
    here = PeerPaths(Path("/c.toml"), Path("/s") / word.replace("\0", "_"))
    values = tomllib.loads(new_configuration(here, "shed", ListenSettings()))
    assert values["state_folder"] == str(here.state_folder)


@pytest.fixture
def joined_places(tmp_path: Path) -> PeerPaths:
    """Return the paths of a peer's state, with a file in the same folder that is not the peer's."""
    here = PeerPaths(tmp_path / "peer.toml", tmp_path / "state")
    for name in ("versions/run-1/5", "cache/jax", "logs", "receipts"):
        (here.state_folder / name).mkdir(parents=True)
    for name in ("identity.key", "credentials.pem", "invite.txt", "donor.json", "lock", "my-photos.tar"):
        (here.state_folder / name).write_text("x")
    here.config_file.write_text("x")
    return here


def left(joined_places: PeerPaths) -> list[str]:
    return sorted(path.name for path in joined_places.state_folder.iterdir())


def test_identity_and_receipts_stay(joined_places: PeerPaths) -> None:
    gone = clear_up(joined_places, forget_identity=False)
    assert left(joined_places) == ["donor.json", "identity.key", "my-photos.tar", "receipts"]
    assert joined_places.config_file.exists()
    assert len(gone) == 6
    assert clear_up(joined_places, forget_identity=False) == []


def test_limits_and_the_months_traffic_stay_without_the_owners_request(joined_places: PeerPaths) -> None:
    (joined_places.state_folder / "limits.json").write_text('{"upload_mbit_s_max": 20.0}')
    (joined_places.state_folder / "donor.json").unlink()
    SavedState(joined_places.state_folder).save(OwnerRequest("finish"), MonthUse("2026-11", 7, 9))
    clear_up(joined_places, forget_identity=False)
    assert (joined_places.state_folder / "limits.json").exists()
    saved = SavedState(joined_places.state_folder)
    assert (saved.asked, saved.use) == (OwnerRequest(), MonthUse("2026-11", 7, 9))
    clear_up(joined_places, forget_identity=True)
    assert left(joined_places) == ["my-photos.tar"]


def test_identity_and_receipts_are_removed_on_request(joined_places: PeerPaths) -> None:
    clear_up(joined_places, forget_identity=True)
    assert left(joined_places) == ["my-photos.tar"]  # what is not ours is nobody's to remove
    assert not joined_places.config_file.exists()
    (joined_places.state_folder / "my-photos.tar").unlink()
    clear_up(joined_places, forget_identity=True)
    assert not joined_places.state_folder.exists()


def test_a_symbolic_link_is_removed_and_its_target_is_not(joined_places: PeerPaths, tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk2"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    (joined_places.state_folder / "tokenizers").symlink_to(elsewhere)
    clear_up(joined_places, forget_identity=False)
    assert (elsewhere / "precious").exists()
    assert not (joined_places.state_folder / "tokenizers").is_symlink()
