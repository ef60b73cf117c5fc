"""Test the errors of a peer's startup, such as two instances on one folder: each is one clear error."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Literal

import pytest

from peer.config import EngineConfig, PeerConfig
from peer.engines.jax_engine import JaxEngine
from peer.instance import FILE, instance_id, this_place
from peer.limits.config import LimitsConfig
from peer.startup import join_run, make_engine, open_store, state_folder_lock, watch_state_folder
from peer.worker.drain import unless
from rollcast.runtime.errors import (
    CorruptChunk,
    JoinRefused,
    MalformedMessage,
    MissingExtra,
    RunFolderError,
    WaitTimedOut,
)
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import RunId
from rollcast.wire.versions.stored_encoding import StoredEncoding
from tests.peer.scripted_coordinator import peer_credentials, scripted_coordinator
from tests.peer.test_service import joined_config
from tests.wire.versions.build import RUN_ID, a_contradiction, a_state, fill


def test_two_peers_cannot_share_a_state_folder(tmp_path: Path) -> None:
    shared = pytest.raises(RunFolderError, match="another peer uses the state folder")
    with state_folder_lock(tmp_path), shared, state_folder_lock(tmp_path):
        pass
    with state_folder_lock(tmp_path):
        pass


def test_a_state_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(RunFolderError, match="cannot use"), state_folder_lock(tmp_path / "state"):
        pass


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_state_folder_that_is_deleted_ends_the_peer(tmp_path: Path, replaced: bool) -> None:
    folder = tmp_path / "state"
    with state_folder_lock(folder):
        watch = asyncio.create_task(watch_state_folder(folder, 0.01))
        await asyncio.wait((watch,), timeout=0.05)
        assert not watch.done()
        folder.rename(tmp_path / "gone")
        if replaced:
            folder.mkdir()
            (folder / "lock").touch()
        with pytest.raises(RunFolderError, match="was deleted while this peer ran"):
            await watch


async def test_a_saved_certificate_is_enough_to_join(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        config = joined_config(tmp_path / "peer", coordinator)
        place = await join_run(config)
        assert place.enrolment.peer_id == place.identity.peer_id
        assert place.enrolment.grpc_address == coordinator.address


async def test_an_expired_certificate_is_enough_to_start(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        config = joined_config(tmp_path / "peer", coordinator)
        identity = Identity.load_or_create(config.state_folder / "identity.key")
        peer_credentials(coordinator.ca, identity, lifetime_s=0.001).save(config.state_folder)
        place = await join_run(config)
        assert place.enrolment.credentials.valid_for_s <= 0.0


async def test_an_invite_for_another_role_is_refused(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        config = joined_config(tmp_path / "peer", coordinator)
        with pytest.raises(JoinRefused, match="for the role peer, this process has the role origin"):
            await join_run(config.model_copy(update={"role": "origin"}))


async def test_libp2p_that_is_missing_is_named_before_the_run_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peer.p2p.thread", None)
    config = PeerConfig.model_validate({"state_folder": tmp_path / "peer", "link": {"p2p": True}})
    with pytest.raises(MissingExtra, match="libp2p is not installed"):
        await join_run(config)
    assert not config.state_folder.exists()


async def test_an_invite_that_never_comes_is_named(tmp_path: Path) -> None:
    config = PeerConfig(state_folder=tmp_path, invite_file=tmp_path / "invite.txt", join_timeout_s=0.1)
    with pytest.raises(WaitTimedOut, match="the invite in"):
        await join_run(config)


async def test_startup_ends_when_the_process_is_stopped(tmp_path: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    config = PeerConfig(state_folder=tmp_path, invite_file=tmp_path / "invite.txt")
    assert await asyncio.wait_for(unless(stop, join_run(config)), 2.0) is None


@pytest.mark.parametrize("kind", ["auto", "jax"])
def test_a_missing_engine_package_is_an_error_with_its_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.delitem(sys.modules, "peer.engines.jax_engine", raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtra) as caught:
        make_engine(PeerConfig(state_folder=tmp_path, engine=EngineConfig(kind=kind)))
    assert "[peer]" in caught.value.fix


async def test_a_server_of_the_owner_is_the_engine_of_kind_sglang(tmp_path: Path) -> None:
    engine = make_engine(PeerConfig(state_folder=tmp_path, engine=EngineConfig(kind="sglang")))
    assert "SGLang server" in engine.hardware
    await engine.close()


async def test_the_engine_of_a_peer_is_jax(tmp_path: Path) -> None:
    engine = make_engine(PeerConfig(state_folder=tmp_path))
    assert isinstance(engine, JaxEngine)
    assert engine.hardware
    await engine.close()


async def test_an_engine_takes_no_more_of_an_accelerators_memory_than_its_owner_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    engine = make_engine(PeerConfig(state_folder=tmp_path, limits=LimitsConfig(vram_share_max=0.4)))
    assert os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION") == "0.400"
    await engine.close()


@pytest.mark.parametrize("run_id", ["", ".", "..", "../run", "a/b", ".hidden", "a" * 65, "run\n"])
def test_a_run_whose_name_is_no_folder_name_touches_nothing(tmp_path: Path, run_id: str) -> None:
    config = PeerConfig(state_folder=tmp_path / "state")
    with pytest.raises(MalformedMessage, match="folder name"):
        open_store(config, RunId(run_id))
    assert list(tmp_path.iterdir()) == []


def test_the_origin_alone_hashes_states_whose_chunks_are_verified(tmp_path: Path) -> None:
    state = a_state()
    wrong, hashes = a_contradiction(state)

    def received(role: Literal["peer", "origin"]) -> StoredEncoding:
        store = open_store(PeerConfig(role=role, state_folder=tmp_path / role), RUN_ID)
        encoding = store.begin(wrong, wrong.keyframe, hashes)
        fill(encoding, state)
        return encoding

    received("peer").verify_state()
    with pytest.raises(CorruptChunk):
        received("origin").verify_state()


def test_the_instance_id_stays_the_same_in_its_place(tmp_path: Path) -> None:
    first = instance_id(tmp_path)
    assert len(first) == 32
    assert instance_id(tmp_path) == first
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert str(tmp_path) not in (tmp_path / FILE).read_text()


def test_a_copied_state_folder_is_another_instance(tmp_path: Path) -> None:
    here, copy = tmp_path / "here", tmp_path / "copy"
    first = instance_id(here)
    shutil.copytree(here, copy)
    second = instance_id(copy)
    assert second != first
    assert instance_id(copy) == second
    assert instance_id(here) == first
    assert instance_id(here, "another machine") != first


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"instance_id": 3, "place": 4}'])
def test_a_damaged_file_is_made_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    first = instance_id(tmp_path)
    assert instance_id(tmp_path) == first


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError):
        instance_id(tmp_path / "file")


def test_a_place_names_its_folder(tmp_path: Path) -> None:
    assert this_place(tmp_path) != this_place(tmp_path / "other")
