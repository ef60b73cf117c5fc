"""Prepare a peer for work: lock its state folder, load its identity, join the run, open the store, build the engine."""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from peer.config import EngineConfig, PeerConfig
from peer.engines.base import Engine
from peer.instance import instance_id
from peer.p2p.transport import host_thread_class
from rollcast.runtime.errors import JoinRefused, MalformedMessage, MissingExtra, RunFolderError
from rollcast.runtime.install import install_command
from rollcast.runtime.run_folder import run_folder_error
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import InvitedRole, RunId
from rollcast.wire.joining.enrol import Enrolment, enrol
from rollcast.wire.joining.invite import Invite, read_invite
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.stored_encoding import store_error

log = structlog.get_logger()

INVITE_TIMEOUT_S = 60.0
"""Seconds to wait for the invite file to appear, when join_timeout_s does not limit the wait."""

_LOCK = "lock"
_LOOK_S = 5.0

# A run's name becomes a folder name, so it has no separator and no leading dot.
_RUN_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class RunMembership:
    """This peer's membership of a run: its identity, which copy of it this is, and its enrolment.

    Args:
        instance_id: id of this copy of the identity (peer.instance).
    """

    identity: Identity
    instance_id: str
    enrolment: Enrolment
    invite: Invite


@contextmanager
def state_folder_lock(folder: Path) -> Iterator[None]:
    """Lock the state folder while the body runs, so that no second process uses the same identity and store.

    Raises:
        RunFolderError: another process holds the lock, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise run_folder_error(folder, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fix = "stop it, or give each peer a state_folder of its own"
            raise RunFolderError(f"another peer uses the state folder {folder}", fix=fix) from None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)  # the holder's process id, valid while it is locked
        except OSError as error:
            raise run_folder_error(folder, error) from None
        yield
    finally:
        os.close(descriptor)


async def watch_state_folder(folder: Path, every_s: float = _LOOK_S) -> None:
    """Run until the locked state folder is deleted or replaced.

    From then on its owner could neither ask nor stop this process, and could start another peer beside it.

    Raises:
        RunFolderError: it was.
    """
    locked = os.stat(folder / _LOCK)
    while True:
        await asyncio.sleep(every_s)
        try:
            same = os.path.samestat(locked, os.stat(folder / _LOCK))
        except FileNotFoundError:
            same = False
        except OSError:
            continue  # a disk that fails for a while
        if not same:
            fix = "start the peer again; to end a peer for good, use `rollcast peer leave`"
            raise RunFolderError(f"the state folder {folder} was deleted while this peer ran", fix=fix)


async def join_run(config: PeerConfig, *, role: InvitedRole | None = None) -> RunMembership:
    """Load or create the identity, wait for the invite, and join the run.

    Args:
        role: role that the invite must be for; None: that of the configuration.

    Raises:
        MissingExtra: libp2p is wanted and not installed.
        JoinRefused: the invite is for another role, or the coordinator refused this peer.
        RollcastError: the invite cannot be read, or the coordinator cannot be reached (see read_invite and enrol).
    """
    if config.link.p2p:
        host_thread_class()  # a peer that cannot start should not spend its invite, which may be good for one
    identity = await asyncio.to_thread(Identity.load_or_create, config.state_folder / "identity.key")
    timeout_s = config.join_timeout_s
    invite = await read_invite(config.invite.get_secret_value(), config.invite_file, timeout_s or INVITE_TIMEOUT_S)
    expected = role or config.role
    if invite.role != expected:
        raise JoinRefused(
            f"the invite is for the role {invite.role}, this process has the role {expected}",
            fix="use the invite for this role, or change `role`",
        )
    instance = await asyncio.to_thread(instance_id, config.state_folder)
    # A saved enrolment is used even if its certificate has expired: the session then joins again, and meanwhile the
    # process runs and shows its owner what it waits for.
    enrolment = await enrol(
        invite, identity, config.state_folder, timeout_s, also=config.coordinators, reuse_valid_for_s=-math.inf
    )
    return RunMembership(identity, instance, enrolment, invite)


def open_store(config: PeerConfig, run_id: RunId) -> ChunkStore:
    """Open the store of one run's versions, in state_folder/versions/{run_id}. Blocks on the disk.

    Versions of other runs are removed: their numbers start from 0 too, and no peer of this run requests them.

    Raises:
        MalformedMessage: the run's name cannot be a folder name.
        StoreError: the disk cannot be read or written.
    """
    if not _RUN_FOLDER_NAME.fullmatch(run_id):
        raise MalformedMessage(f"the coordinator's run name {run_id!r} cannot be a folder name")
    folder = config.state_folder / "versions"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for other in [path for path in folder.iterdir() if path.is_dir() and path.name != run_id]:
            log.info("versions of another run removed", folder=str(other))
            shutil.rmtree(other)
    except OSError as error:
        raise store_error(folder, error) from None
    keep = config.store
    return ChunkStore(
        folder / run_id,
        keep.keep_versions,
        keep_deltas=keep.keep_deltas,
        keep_bytes=keep.keep_bytes,
        in_memory=config.states_in_memory,
        memory_only=keep.memory_only,
        hash_states=config.role == "origin",
    )


def make_engine(config: PeerConfig) -> Engine:
    """Build the engine that the configuration names. Its packages are imported here, or found, for vLLM.

    Raises:
        MissingExtra: the packages of the configured engine are not installed.
    """
    memory_share = config.limits.vram_share_max
    if config.engine.chosen_kind == "vllm":
        return _vllm_engine(config.engine, memory_share, config.state_folder)
    try:
        if config.engine.kind == "sglang":
            return _sglang_engine(config)
        return _jax_engine(config.engine, memory_share)
    except ImportError as error:
        raise MissingExtra(
            "generating rollouts needs packages that are not installed",
            cause=str(error),
            fix=install_command("peer"),
        ) from None


def _jax_engine(config: EngineConfig, memory_share: float | None) -> Engine:
    from peer.engines.jax_engine import JaxEngine

    return JaxEngine(
        concurrent_rollouts=config.concurrent_rollouts,
        compilation_cache=config.compilation_cache,
        matmul_precision=config.matmul_precision,
        versions_on_device=config.versions_on_device,
        cache_tokens=config.cache_tokens,
        devices=config.devices,
        memory_share=memory_share,
    )


def _sglang_engine(config: PeerConfig) -> Engine:
    from peer.engines.sglang.engine import SglangEngine

    folder = config.state_folder / "sglang"
    return SglangEngine(config.engine.sglang, folder, concurrent_rollouts=config.engine.concurrent_rollouts)


def _vllm_engine(config: EngineConfig, memory_share: float | None, state_folder: Path) -> Engine:
    from peer.engines.vllm.engine import VllmSettings, vllm_engine

    settings = VllmSettings(
        concurrent_rollouts=config.concurrent_rollouts,
        tensor_parallel=0 if config.devices == "all" else config.devices,
        cache_tokens=config.cache_tokens,
        memory_share=memory_share,
        slice_s=config.slice_s,
    )
    return vllm_engine(settings, config.python, state_folder)
