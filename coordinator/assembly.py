"""Build a coordinator from its configuration: create its components, connect them, and listen."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from coordinator.config.config import CoordinatorConfig, LimitsConfig
from coordinator.core.core import CoordinatorCore, CoreSettings
from coordinator.core.decisions.state import Restored
from coordinator.core.events.actions import Action
from coordinator.core.events.events import Event, Started
from coordinator.core.events.versions_kept import VERSIONS_KEPT
from coordinator.core.flight_format import FORMAT, Head
from coordinator.environments.player import EpisodePlayer
from coordinator.fleet.applied import AppliedWorkers
from coordinator.fleet.setup import FleetHandle, coroutines, make_callbacks, start_fleet
from coordinator.join import InviteIssuer, JoinDesk
from coordinator.ledger.disk_guard import DiskGuard
from coordinator.ledger.store import CompactingStore
from coordinator.link.core_end import GATEWAYS_MAX, CoreEndSettings
from coordinator.link.listener import GatewayListener
from coordinator.metrics.metrics import CoordinatorMetrics
from coordinator.metrics.sinks.all_sinks import open_sinks
from coordinator.prompts.loading import TaskLoading
from coordinator.prompts.problems import Problems
from coordinator.prompts.samples import SampleBook
from coordinator.prompts.start_report import start_reported
from coordinator.recovery.authority import run_authority
from coordinator.recovery.resume import PORTS, TOKENIZER, RunStart, check_clock, open_run
from coordinator.rpc.access import RoleGate
from coordinator.rpc.cell import CellCalls
from coordinator.rpc.core_link import LocalCore, WelcomeSettings
from coordinator.rpc.learner import LearnerCalls
from coordinator.rpc.peers import PeerCalls
from coordinator.rpc.server import ControlServer, Servicer
from coordinator.rpc.tokenizer import TokenizerCalls, packed_file
from coordinator.rpc.upload_limits import UploadRates
from coordinator.shell.background import Background
from coordinator.shell.core_settings import core_settings
from coordinator.shell.dial_back import BackDialer
from coordinator.shell.evaluations import Evaluations
from coordinator.shell.flight_recorder import Recorder
from coordinator.shell.sessions import Sessions
from coordinator.shell.shell import Shell
from coordinator.shell.upload_refusal import UploadRefusal
from coordinator.stores.leadership import Leadership
from coordinator.stores.opening import open_store
from coordinator.tasks.build import has_flawed_teacher
from coordinator.tasks.evaluation_sets import HELD_OUT
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.process import is_loopback
from rollcast.runtime.run_folder import RunFolder, run_folder_error, write_atomically, write_json
from rollcast.runtime.version import software_version
from rollcast.wire.address_scope import with_port
from rollcast.wire.identity.tls import RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import Role, RunId
from rollcast.wire.joining.invite import Invite
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.rollout_messages import sampling_to_pb
from rollcast.wire.rollouts import Sampling

if TYPE_CHECKING:
    from coordinator.api.wiring import HttpParts

log = structlog.get_logger()

ANSWER_BEATS = 2.0  # heartbeat intervals that the answer to one may take
CALLS_GRACE_S = 1.0  # for calls still running when the control port closes


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses at which others reach the coordinator; the content of endpoints.json."""

    http_url: str
    grpc_address: str
    page_url: str
    """Where people open the dashboard."""
    run_id: str


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The components of a started coordinator."""

    config: CoordinatorConfig
    folder: RunFolder
    run_id: RunId
    sampling: Sampling
    ca: RunCA
    ledger: CompactingStore
    problems: Problems
    sessions: Sessions
    shell: Shell
    evaluations: Evaluations
    desk: JoinDesk
    invites: InviteIssuer
    metrics: CoordinatorMetrics
    disk: DiskGuard
    refusal: UploadRefusal
    start: RunStart
    fleet_handle: FleetHandle

    @property
    def learner_public_key(self) -> bytes:
        return bytes.fromhex(self.config.learner_public_key)


@asynccontextmanager
async def started(
    config: CoordinatorConfig,
    folder: RunFolder,
    leadership: Leadership | None = None,
    head: Invite | None = None,
    task: TaskLoading | None = None,
) -> AsyncIterator[Coordinator]:
    """Start every component; on leaving, stop what was started in the opposite order.

    Args:
        leadership: of a store in PostgreSQL; None: the store is SQLite.
        head: the head's invite, if this coordinator serves a cell; None: it has a run of its own.
        task: the run's task, if it loads already, as it does at a standby; None: it is loaded.

    Raises:
        RollcastError: a component cannot start.
    """
    async with AsyncExitStack() as stack:
        ledger = open_store(config.store, folder, leadership)
        stack.push_async_callback(ledger.close)
        start = await open_run(ledger, folder, config.run, None if head is None else head.run_id)
        await check_clock(ledger, time.time())
        position = start.mixture_position if head is None else None  # a cell's prompts are the head's
        task = task or TaskLoading(config)
        async with start_reported(folder, task.progress):
            problems = await Problems.start(config, position, start.problems, start.tokenizer, start.rewards, task)
        stack.push_async_callback(problems.close)
        # What is stored is not stored again: the members of a coordinator that takes over wait for each commit.
        if problems.tokenizer.to_json() != start.tokenizer:
            # With the stored tokenizer a restart serves uploads at once, before the task's library has loaded.
            await ledger.set_meta(TOKENIZER, problems.tokenizer.to_json())
        authority = await run_authority(ledger, folder, start.run_id, _key_file(config, folder))
        coordinator = _assemble(config, folder, start, ledger, problems, authority, stack)
        stack.push_async_callback(coordinator.shell.close)
        stack.callback(coordinator.disk.close)
        kept = coordinator.shell.core.rules.kept
        if kept != start.restored.kept:  # as when S was raised
            await ledger.set_meta(VERSIONS_KEPT, kept.to_json())
        # The core needs the learner's reports, what the capacity model decided and learned, and the operator's orders
        # before a member connects.
        coordinator.shell.apply(Started())
        audit = () if start.audit is None else (start.audit,)
        restored = (start.standby, start.learned, start.earned, *audit)
        for event in (*start.replay, *restored, *start.orders.events(coordinator.shell.core.rules.rules)):
            coordinator.shell.apply(event)
        for work in _background(coordinator).coroutines():
            stack.push_async_callback(_cancel, asyncio.create_task(work))
        endpoints = await _listen(stack, coordinator)
        if start.learner_finished:
            coordinator.shell.finished.set()
        await _write_invites(coordinator)
        await _run_fleet(stack, coordinator)
        # Last, because commands take this file as the sign that the coordinator listens.
        await asyncio.to_thread(write_json, folder.endpoints, asdict(endpoints))
        log.info("listening", **asdict(endpoints))
        yield coordinator


def _key_file(config: CoordinatorConfig, folder: RunFolder) -> Path | None:
    """Return the file of the key that encrypts keys in a shared store; None: the run folder keeps them."""
    return folder.secrets / config.store.key_file if config.store.url else None


def _start_record(
    config: CoordinatorConfig, folder: RunFolder, settings: CoreSettings, restored: Restored, stack: AsyncExitStack
) -> Callable[[float, Event, Sequence[Action]], None]:
    """Return the function that writes the flight record; it does nothing if no record is kept."""
    if not config.record.enabled:
        return lambda now, event, actions: None
    head = Head(FORMAT, software_version(), time.time(), time.monotonic(), settings, restored)
    recorder = Recorder(folder.record, restored.incarnation, head, bytes_max=config.record.bytes_max)
    stack.push_async_callback(asyncio.to_thread, recorder.close)
    return recorder.note


def check(config: CoordinatorConfig) -> None:
    """Check what the configuration's classes cannot check.

    Raises:
        ConfigError: a value is missing, or does not fit another.
    """
    if not config.learner_public_key:
        raise ConfigError(
            "learner_public_key is not set",
            cause="peers verify the signatures on weights with this key",
            fix="set it to what `rollcast identity FILE` prints for the learner's key",
        )
    if config.providers.pool is not None and config.providers.want == "plan" and config.capacity.mode != "act":
        raise ConfigError(
            "no setting decides which workers are started",
            cause=f'providers.want is "plan", and capacity.mode is "{config.capacity.mode}"',
            fix='set capacity.mode = "act", or providers.want = "apply" or "all"',
        )
    if config.serve.host in ("0.0.0.0", "::") and not config.serve.advertise_host:
        raise ConfigError(
            f"serve.host = {config.serve.host} is not an address that others can dial",
            fix="set serve.advertise_host to this machine's name or address",
        )


def _assemble(
    config: CoordinatorConfig,
    folder: RunFolder,
    start: RunStart,
    ledger: CompactingStore,
    problems: Problems,
    ca: RunCA,
    stack: AsyncExitStack,
) -> Coordinator:
    run_id = start.run_id
    sampled, ends = config.sampling, problems.tokenizer.stop_ids
    sampling = Sampling(sampled.temperature, sampled.new_tokens_max, ends, sampled.stop_strings)
    settings = core_settings(
        config, run_id, sampling, vocabulary_size=problems.tokenizer.size, seed_secret=start.seed_secret
    )
    record = _start_record(config, folder, settings, start.restored, stack)
    sessions, fleet_handle, store = Sessions(), FleetHandle(), config.store
    disk = DiskGuard(folder.root, free_bytes_min=store.free_bytes_min, ballast_bytes=store.ballast_bytes)
    metrics = CoordinatorMetrics(lambda: fleet_handle.merged(shell.exported_status()), lambda: shell.broadcast())
    refusal = UploadRefusal(folder.root, disk, ledger, metrics.loop_lag, is_shared=bool(store.url))
    sink = open_sinks(config.metrics, folder, metrics.registry, run_id=run_id, run_name=config.run.name)
    stack.push_async_callback(asyncio.to_thread, sink.close)
    shell = Shell(
        core=CoordinatorCore(settings, start.restored),
        ledger=ledger,
        problems=problems,
        sessions=sessions,
        sink=sink,
        clock=time.monotonic,
        observe_answer_s=metrics.upload_answer_s.observe,
        refuses_uploads=lambda: refusal.now() is not None,
        learner_values=start.learner_values,
        learner_lives=start.learner_lives,
        record=record,
        samples=SampleBook(folder, config.store.samples_bytes_max),
        with_routes=config.sampling.router_replay,
    )
    problems.forget_unless(shell.core.state.problems_in_use)
    if problems.environments is not None:
        player = EpisodePlayer(problems.environments, problems.tokenizer, problems.sampled, shell.apply, shell.fail)
        stack.push_async_callback(player.close)  # before the pool, which the problems close
        shell.on_episode = player.take
    desk = JoinDesk(
        run_id=run_id,
        ca=ca,
        ledger=ledger,
        learner_public_key=bytes.fromhex(config.learner_public_key),
        certificate_lifetime_s=config.join.certificate_lifetime_s,
        learner_signs=config.cell.invite_file is None,
    )
    desk.banned_because = shell.core.banned_because
    desk.has_session = lambda peer_id: shell.core.state.members.get(peer_id) is not None
    invites = InviteIssuer(
        desk,
        run_id=run_id,
        ca_sha256=ca.fingerprint,
        learner_public_key=config.learner_public_key,
        release=config.join.release.named(),
    )
    invites.further = tuple(config.serve.advertise_further)
    return Coordinator(
        config=config,
        folder=folder,
        run_id=run_id,
        sampling=sampling,
        ca=ca,
        ledger=ledger,
        problems=problems,
        sessions=sessions,
        shell=shell,
        evaluations=Evaluations(shell, problems),
        desk=desk,
        invites=invites,
        metrics=metrics,
        disk=disk,
        refusal=refusal,
        start=start,
        fleet_handle=fleet_handle,
    )


async def _listen(stack: AsyncExitStack, coordinator: Coordinator) -> Endpoints:
    """Bind all ports and return their addresses.

    The control port comes first, because replies to joins name it and members wait for it. A restart binds the ports
    that members know.
    """
    serve, shell, ports = coordinator.config.serve, coordinator.shell, coordinator.start.ports
    limits = coordinator.config.limits
    credentials = _credentials(coordinator)
    advertised = serve.advertise_host or serve.host
    gate = RoleGate(coordinator.run_id, learner_called=shell.learner_called)
    core = _local_core(coordinator)
    tokenizer = TokenizerCalls(partial(packed_file, coordinator.config.tokenizer.folder))
    peers = PeerCalls(core, _upload_rates(limits))
    control = await ControlServer.start(
        _servicer(coordinator, peers, tokenizer),
        gate,
        credentials,
        host=serve.host,
        port=serve.grpc_port or ports.get("grpc", 0),
        per_address=limits.control_connections_per_address,
        connections_max=limits.control_connections_max,
    )
    stack.push_async_callback(control.stop, CALLS_GRACE_S)
    dialer = BackDialer(credentials, coordinator.run_id, shell.core.state.settings.dial_backs, shell.apply)
    stack.push_async_callback(dialer.close)
    shell.on_try = dialer.take
    coordinator.desk.grpc_address = with_port(advertised, control.port)
    coordinator.desk.gateways = tuple(coordinator.config.gateways.addresses)
    await _accept_gateways(stack, coordinator, core, tokenizer, credentials)
    http_port, http_refused = await _listen_http(stack, coordinator, credentials)
    coordinator.metrics.watch_doors({"control": gate.refused, "session": peers.refused, "http": http_refused})
    bound = {"grpc": control.port, "http": http_port}
    if bound != ports:
        await coordinator.ledger.set_meta(PORTS, json.dumps(bound))
    url = f"{'http' if is_loopback(serve.host) else 'https'}://{with_port(advertised, http_port)}"
    coordinator.invites.http_url = url
    return Endpoints(url, coordinator.desk.grpc_address, serve.page_url or url, coordinator.run_id)


async def _listen_http(
    stack: AsyncExitStack, coordinator: Coordinator, credentials: TlsCredentials
) -> tuple[int, Mapping[str, int]]:
    """Bind the HTTP port; return it, and how many requests were refused by reason."""
    await asyncio.to_thread(load_http)
    from coordinator.api.wiring import http_app
    from coordinator.http.server import HttpServer

    serve, limits = coordinator.config.serve, coordinator.config.limits
    is_local = is_loopback(serve.host)
    names = frozenset({"localhost", "127.0.0.1", "::1", *serve.hosts})
    app = await http_app(
        _http_parts(coordinator), hosts=names if is_local else None, open_reading=is_local and serve.open_reading
    )
    if not is_local and not serve.observe_port:
        fix = "set serve.observe_port and open that port: without it few kinds of routers are recognised"
        log.warning("routers of peers may stay unknown", fix=fix)
    http = await HttpServer.start(
        app,
        host=serve.host,
        port=serve.http_port or coordinator.start.ports.get("http", 0),
        tls=None if is_local else credentials.ssl_server_context(ask_client=False),
        idle_per_address=limits.connections_per_address,
        connections_max=limits.connections_max,
    )
    stack.push_async_callback(http.stop)
    return http.port, app.refused


def load_http() -> None:
    """Load what serves pages and the API, a third of all imports, while members are served already."""
    import coordinator.api.wiring
    import coordinator.http.server  # noqa: F401


def _background(coordinator: Coordinator) -> Background:
    return Background(
        config=coordinator.config,
        folder=coordinator.folder,
        shell=coordinator.shell,
        ledger=coordinator.ledger,
        problems=coordinator.problems,
        metrics=coordinator.metrics,
        disk=coordinator.disk,
    )


def _http_parts(coordinator: Coordinator) -> HttpParts:
    from coordinator.api.wiring import HttpParts

    return HttpParts(
        config=coordinator.config,
        folder=coordinator.folder,
        run_id=coordinator.run_id,
        ledger=coordinator.ledger,
        shell=coordinator.shell,
        desk=coordinator.desk,
        invites=coordinator.invites,
        metrics=coordinator.metrics,
        refusal=coordinator.refusal,
        orders=coordinator.start.orders,
        fleet_handle=coordinator.fleet_handle,
        tokenizer=coordinator.problems.tokenizer,
        evaluations=coordinator.evaluations,
    )


async def _accept_gateways(
    stack: AsyncExitStack,
    coordinator: Coordinator,
    core: LocalCore,
    tokenizer: TokenizerCalls,
    credentials: TlsCredentials,
) -> None:
    """Listen for gateways, if the configuration says where."""
    config, shell, ca = coordinator.config, coordinator.shell, coordinator.ca
    if config.gateways.listen is None:
        return
    settings = CoreEndSettings(
        run_id=coordinator.run_id,
        ca_pem=ca.certificate_pem,
        issue=ca.issue_gateway,
        tokenizer=tokenizer.packed,
        router_replay=config.sampling.router_replay,
    )
    listener = GatewayListener(core, settings)

    async def close() -> None:
        await listener.close(over=shell.ended_because if shell.ended_for_good else "")

    stack.push_async_callback(close)
    await listener.listen(config.gateways.listen, credentials.ssl_server_context())
    coordinator.metrics.watch_gateways(listener.sessions)


def _local_core(coordinator: Coordinator) -> LocalCore:
    config, sampling = coordinator.config, sampling_to_pb(coordinator.sampling)
    welcome = WelcomeSettings(
        run_id=coordinator.run_id,
        learner_public_key=coordinator.learner_public_key,
        heartbeat_interval_s=config.membership.heartbeat_interval_s,
        heartbeat_timeout_s=config.membership.heartbeat_timeout_s,
        prompt_tokens_max=config.sampling.prompt_tokens_max,
        sampling=sampling,
        prefetch_batches=config.lease.prefetch_batches,
        at_version_swap=config.lease.at_version_swap,
        partial_interval_s=config.lease.partial_interval_s if config.lease.is_continued_elsewhere else 0.0,
        software=f"rollcast {software_version()}",
        tokenizer_json=coordinator.problems.tokenizer.to_json() if config.sampling.stop_strings else "",
        router_replay=config.sampling.router_replay,
        answer_s=_answer_s(config),
    )
    return LocalCore(coordinator.shell, coordinator.sessions, coordinator.desk, welcome, coordinator.ledger)


def _answer_s(config: CoordinatorConfig) -> float:
    """Return within what time heartbeats are usually answered, in seconds.

    Several gateways listen at the same time, so that peers of one that is only busy would leave it at once: they wait
    as long as the coordinator would wait for them. A standby listens only when it leads.
    """
    membership = config.membership
    if config.gateways.addresses:
        return membership.heartbeat_timeout_s
    return ANSWER_BEATS * membership.heartbeat_interval_s


def _servicer(coordinator: Coordinator, peers: PeerCalls, tokenizer: TokenizerCalls) -> Servicer:
    config, sampling = coordinator.config, sampling_to_pb(coordinator.sampling)
    run = pb.RunInfo(
        protocol=range_to_pb(),
        run_id=coordinator.run_id,
        steps=config.run.steps,
        groups_per_step=config.run.groups_per_step,
        samples_per_group=config.run.samples_per_group,
        prompt_tokens_max=config.sampling.prompt_tokens_max,
        sampling=sampling,
        tokenizer_json=coordinator.problems.tokenizer.to_json(),
        evaluation_sets=[HELD_OUT, *config.evaluation_sets],
        router_replay=config.sampling.router_replay,
        at_version_swap=config.lease.at_version_swap,
        has_flawed_teacher=has_flawed_teacher(config.task),
    )
    return Servicer(
        peers,
        tokenizer,
        LearnerCalls(
            run=run,
            learner_public_key=coordinator.learner_public_key,
            shell=coordinator.shell,
            ledger=coordinator.ledger,
            problems=coordinator.problems,
            sessions=coordinator.sessions,
            samples=coordinator.shell.samples,
            evaluations=coordinator.evaluations,
        ),
        CellCalls(coordinator.shell),
    )


def _upload_rates(limits: LimitsConfig) -> UploadRates:
    return UploadRates(
        limits.uploads_per_second, limits.upload_bytes_per_second, limits.uploads_at_once, limits.together
    )


def _credentials(coordinator: Coordinator) -> TlsCredentials:
    """Issue a certificate for every name of the coordinator; its key is new at each start."""
    key = new_tls_key()
    certificate = coordinator.ca.issue_coordinator(key.csr_pem(), coordinator.config.serve.hosts)
    return TlsCredentials(coordinator.ca.certificate_pem, certificate, key.private_pem)


async def _write_invites(coordinator: Coordinator) -> None:
    """Write the run CA's certificate, readable for all, and one invite per role, readable for the owner only."""
    join, folder = coordinator.config.join, coordinator.folder
    await _write(folder.authority, coordinator.ca.certificate_pem, mode=0o644)
    quotas: list[tuple[Role, int]] = [("learner", 1), ("origin", join.origins_max), ("peer", join.peers_max)]
    if coordinator.config.gateways.listen is not None:
        quotas.append(("gateway", GATEWAYS_MAX))
    if join.cells_max:
        quotas.append(("cell", join.cells_max))
    invites = asyncio.gather(
        *(
            coordinator.invites.invite(
                role, quota=quota, lifetime_s=join.invite_lifetime_s, note=f"secrets/invite-{role}.txt"
            )
            for role, quota in quotas
        )
    )
    for (role, _), invite in zip(quotas, await invites, strict=True):
        await _write(folder.secrets / f"invite-{role}.txt", f"{invite.encode()}\n".encode(), mode=0o600)


async def _write(path: Path, data: bytes, *, mode: int) -> None:
    try:
        await asyncio.to_thread(write_atomically, path, data, mode=mode)
    except OSError as error:
        raise run_folder_error(path, error) from None


async def _run_fleet(stack: AsyncExitStack, coordinator: Coordinator) -> None:
    """Start the fleet of workers at providers; each worker gets its own invite, for one identity and one start."""
    config, fleet_handle = coordinator.config.providers, coordinator.fleet_handle
    lifetime_s = 2.0 * config.start_timeout_s

    async def invite() -> str:
        made = await coordinator.invites.invite("peer", quota=1, lifetime_s=lifetime_s, note="a worker at a provider")
        return made.encode()

    callbacks = make_callbacks(coordinator.shell, coordinator.sessions, coordinator.ledger, invite)
    fleet = await start_fleet(config, coordinator.folder.root, coordinator.run_id, callbacks, coordinator.ledger)
    if fleet is not None:
        coordinator.desk.on_claimed = fleet.claimed
        applied = await _applied_workers(coordinator) if config.want == "apply" else None
        fleet_handle.run(fleet, applied, config.want)
        coordinator.shell.on_budget = fleet_handle.set_budget
        if coordinator.start.orders.budget is not None:  # the operator set it before this restart
            fleet_handle.set_budget(coordinator.start.orders.budget)
        stack.push_async_callback(fleet.close)
        for work in coroutines(fleet, fleet_handle, coordinator.shell, config.want):
            stack.push_async_callback(_cancel, asyncio.create_task(work))


async def _applied_workers(coordinator: Coordinator) -> AppliedWorkers:
    path = coordinator.folder.fleet_applied
    if coordinator.config.store.url:
        return await AppliedWorkers.stored(coordinator.ledger, path)
    return await asyncio.to_thread(AppliedWorkers.load, path)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
