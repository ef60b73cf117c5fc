"""What a peer needs before it can begin: its folder to itself, an identity, a place in a run, an engine."""

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
from rollcast.runtime.errors import JoinRefused, MalformedMessage, MissingExtra, RunFolderError
from rollcast.runtime.run_folder import run_folder_error
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import RunId
from rollcast.wire.joining.enrol import Enrolment, enrol
from rollcast.wire.joining.invite import Invite, read_invite
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.stored_encoding import store_error

log = structlog.get_logger()

INVITE_TIMEOUT_S = 60.0
"""For the file with the invite to appear, where nothing bounds the search for the coordinator."""

# A run's name becomes a folder name: no separator, and it does not begin with a dot.
_RUN_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class RunMembership:
    """Who we are, which copy of that, and in which run."""

    identity: Identity
    instance_id: str
    enrolment: Enrolment
    invite: Invite


@contextmanager
def state_folder_lock(folder: Path) -> Iterator[None]:
    """Keep a second process off the same identity and store for as long as the body runs.

    Raises:
        RunFolderError: another process has it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise run_folder_error(folder, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fix = "stop it, or give each peer a state_folder of its own"
            raise RunFolderError(f"another peer uses the state folder {folder}", fix=fix) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)  # who has it, for as long as it is locked
        yield
    finally:
        os.close(descriptor)


async def join_run(config: PeerConfig) -> RunMembership:
    """Load or make the identity, wait for the invite, join the run.

    Raises:
        RollcastError: see read_invite and enrol; JoinRefused where the invite is for another role.
    """
    identity = await asyncio.to_thread(Identity.load_or_create, config.state_folder / "identity.key")
    patience_s = config.join_timeout_s
    invite = await read_invite(config.invite.get_secret_value(), config.invite_file, patience_s or INVITE_TIMEOUT_S)
    if invite.role != config.role:
        raise JoinRefused(
            f"the invite is for the role {invite.role}, this process has the role {config.role}",
            fix="use the invite for this role, or change `role`",
        )
    instance = await asyncio.to_thread(instance_id, config.state_folder)
    # One that has ended is good enough to begin with: the session joins again, and the owner sees what it waits for.
    enrolment = await enrol(
        invite, identity, config.state_folder, patience_s, also=config.coordinators, reuse_valid_for_s=-math.inf
    )
    return RunMembership(identity, instance, enrolment, invite)


def open_store(config: PeerConfig, run_id: RunId) -> ChunkStore:
    """The versions kept of one run, in state_folder/versions/{run_id}. Blocks on the disk.

    Version numbers begin again in each run. What is left of other runs is removed: nobody will ask us for it.

    Raises:
        MalformedMessage: the run's name cannot be a folder name.
        StoreError: the disk refuses.
    """
    if not _RUN_FOLDER_NAME.fullmatch(run_id):
        raise MalformedMessage(f"the run's name {run_id!r} cannot be a folder name")
    folder = config.state_folder / "versions"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for other in [path for path in folder.iterdir() if path.is_dir() and path.name != run_id]:
            log.info("versions of another run removed", folder=str(other))
            shutil.rmtree(other)
    except OSError as error:
        raise store_error(folder, error) from None
    keep = config.store
    return ChunkStore(folder / run_id, keep.keep_versions, keep_deltas=keep.keep_deltas, keep_bytes=keep.keep_bytes)


def make_engine(config: PeerConfig) -> Engine:
    """The engine that the configuration asks for. Only here a peer imports jax or torch, and never both.

    Raises:
        MissingExtra: it is not installed; or none is.
    """
    kinds = ("jax", "torch") if config.engine.kind == "auto" else (config.engine.kind,)
    missing: list[str] = []
    for kind in kinds:
        try:
            make = _jax_engine if kind == "jax" else _torch_engine
            return make(config.engine, config.limits.vram_share_max)
        except ImportError as error:
            missing.append(str(error))
    raise MissingExtra(
        "generating rollouts needs packages that are not installed",
        cause="; ".join(missing),
        fix="install them: pip install 'rollcast[peer]', or 'rollcast[torch]' for engine.kind = \"torch\"",
    )


def _jax_engine(config: EngineConfig, memory_share: float | None) -> Engine:
    from peer.engines.jax_engine import JaxEngine

    return JaxEngine(
        concurrent_rollouts=config.concurrent_rollouts,
        compilation_cache=config.compilation_cache,
        cache_tokens=config.cache_tokens,
        memory_share=memory_share,
    )


def _torch_engine(config: EngineConfig, memory_share: float | None) -> Engine:
    from peer.engines.torch_engine import TorchEngine

    return TorchEngine(concurrent_rollouts=config.concurrent_rollouts, memory_share=memory_share)
