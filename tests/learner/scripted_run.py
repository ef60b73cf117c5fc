"""Script a coordinator and an origin over real TLS on loopback, for tests of the learner's shell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from aiohttp import web

from rollcast.runtime.errors import RollcastError
from rollcast.wire.identity.certificates import fingerprint_of
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.grpc_client import error_to_json, status_of
from rollcast.wire.joining.invite import Invite
from rollcast.wire.links.frames import NO_STRIPE, ChunkFrame, LinkFrame, LinkMessageFrame
from rollcast.wire.links.handshake import PATH, UPGRADE_HEADERS, caller_of, greet
from rollcast.wire.links.stream import LinkStream
from rollcast.wire.links.tcp import SocketOptions
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.routes import RouteShape
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import pack_ids
from rollcast.wire.versions.chunks import check_chunk
from rollcast.wire.versions.records import VerifiedVersion, verify_announcement
from rollcast.wire.versions.state_hash import state_hash

RUN_ID = RunId("scripted-run")
TOKENIZER = Tokenizer((), "0123456789+=")
LOOPBACK = "127.0.0.1"
DEAD_URL = f"http://{LOOPBACK}:9"


class Authority:
    """A run CA, the learner's identity, and credentials for every process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = RunCA.create(folder, RUN_ID)
        self.learner = Identity.load_or_create(folder / "learner.key")
        self.learner_file = folder / "learner.key"
        self.origin = Identity.generate()

    def credentials(self, identity: Identity, role: Any, *, lifetime_s: float = 3600.0) -> TlsCredentials:
        key = new_tls_key()
        certificate = self.ca.issue(key.csr_pem(), peer_id=identity.peer_id, role=role, lifetime_s=lifetime_s)
        return TlsCredentials(self.ca.certificate_pem, certificate, key.private_pem)

    def coordinator(self) -> TlsCredentials:
        key = new_tls_key()
        certificate = self.ca.issue_coordinator(key.csr_pem(), [LOOPBACK])
        return TlsCredentials(self.ca.certificate_pem, certificate, key.private_pem)

    def enrolment(self, grpc_address: str, *, lifetime_s: float = 3600.0) -> Enrolment:
        """Return the learner's enrolment, with a new certificate."""
        return Enrolment(
            credentials=self.credentials(self.learner, "learner", lifetime_s=lifetime_s),
            run_id=RUN_ID,
            grpc_address=grpc_address,
            http_url=DEAD_URL,
            learner_public_key=self.learner.public_key,
            peer_id=self.learner.peer_id,
        )

    def invite(self, grpc_address: str, http_url: str = DEAD_URL) -> str:
        """Return an invite; with the dead address a test saves the learner's certificate beforehand."""
        return Invite(
            run_id=RUN_ID,
            role="learner",
            http_url=http_url,
            grpc_address=grpc_address,
            ca_sha256=fingerprint_of(self.ca.certificate_pem),
            learner_public_key=self.learner.public_key.hex(),
            token="token",
        ).encode()


# ---------------------------------------------------------------- coordinator


@dataclass
class Script:
    """The run's settings, and its faults."""

    steps: int = 4
    staleness_limit: int = 2
    publish_every_steps: int = 1
    groups_per_step: int = 2
    samples_per_group: int = 2
    prompt_tokens_max: int = 6
    max_new_tokens: int = 3
    held_out: int = 6
    evaluated_by_peers: bool = False  # otherwise the learner has to sample evaluations itself
    newest_usable_version: Callable[[int], int] | None = None  # step -> version; default: the newest announced
    batch_gate: asyncio.Event | None = None  # no batch is ready before it is set
    paused: bool = False  # what is said of a batch that is not ready
    final_from: int | None = None  # no batch is formed from this step on: the operator ends the run
    examples_error: RollcastError | None = None
    examples_in_time: list[int] = field(default_factory=list)  # that each call brings before its deadline; then all
    spoil: Callable[[int, list[pb.TrainingRollout]], None] = lambda step, rollouts: None
    kappa: Callable[[int], int] = lambda step: 0  # header of each step's batch
    raised_limit: Callable[[int], int] = lambda step: 0  # S in the header of each step's batch; 0: as at the start
    profile: pb.ProfileOrder | None = None
    routes: RouteShape | None = None  # of the model, with router replay


class ScriptedCoordinator(rollcast_pb2_grpc.CoordinatorServicer):
    """A coordinator that forms batches of random tokens of announced versions, records and replays them."""

    def __init__(self, authority: Authority, script: Script) -> None:
        self.authority = authority
        self.script = script
        self.origin_address = ""
        self.announcements: dict[int, VerifiedVersion] = {}
        self.announced: list[int] = []  # every Announce call
        self.batches: dict[int, list[pb.TrainingRollout]] = {}
        self.served: list[tuple[int, bool]] = []
        self.hold_epoch_replies = False
        self.epochs: list[tuple[pb.EpochRequest, pb.EpochStart]] = []
        self.examples_asked: list[tuple[int, int, float]] = []  # cursor, count, seconds of the timeout
        self.contents: dict[int, set[bytes]] = {}  # announcements of each version, as they came
        self.step_reports: list[pb.StepReport] = []
        self.statuses: list[pb.LearnerStatus] = []
        self.evaluations: list[pb.EvaluationRequest] = []
        self.changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> int:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        rollcast_pb2_grpc.add_CoordinatorServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        credentials = self.authority.coordinator().grpc_server_credentials()
        bound = self._server.add_secure_port(f"{LOOPBACK}:{port}", credentials)
        await self._server.start()
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def until(self, condition: Callable[[], bool], timeout_s: float = 40.0) -> None:
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(condition)

    @property
    def phases(self) -> list[str]:
        phases: list[str] = []
        for status in self.statuses:
            if not phases or phases[-1] != status.phase:
                phases.append(status.phase)
        return phases

    def figure(self, name: str) -> float:
        return next(status.values[name] for status in reversed(self.statuses) if name in status.values)

    # -- the learner's calls

    async def OpenLearner(self, request: pb.LearnerHello, context: Any) -> pb.RunInfo:
        assert request.learner_public_key == self.authority.learner.public_key
        script = self.script
        newest = max(self.announcements, default=None)
        return pb.RunInfo(
            protocol=range_to_pb(),
            run_id=RUN_ID,
            epoch=len(self.epochs),
            steps=script.steps,
            staleness_limit=script.staleness_limit,
            publish_every_steps=script.publish_every_steps,
            groups_per_step=script.groups_per_step,
            samples_per_group=script.samples_per_group,
            prompt_tokens_max=script.prompt_tokens_max,
            sampling=self._sampling(),
            tokenizer_json=TOKENIZER.to_json(),
            has_flawed_teacher=True,
            recorded_batches=len(self.batches),
            has_published=newest is not None,
            newest_published_version=newest or 0,
            newest_announcement=None if newest is None else self.announcements[newest].announcement,
            origin_address=self.origin_address,
            origin_peer_id=self.authority.origin.peer_id,
            epochs=[start for _, start in self.epochs],
            router_replay=script.routes is not None,
        )

    async def OpenEpoch(self, request: pb.EpochRequest, context: Any) -> pb.EpochReply:
        for asked, start in self.epochs:
            if asked == request:
                return pb.EpochReply(epoch=start.epoch, step=start.step)
        if request.step < max(self.batches, default=-1) + 1:
            return pb.EpochReply(epoch=len(self.epochs), step=max(self.batches) + 1)
        step = max(request.step, max(self.announcements, default=-1) + 1)
        self.epochs.append((request, pb.EpochStart(epoch=len(self.epochs) + 1, step_from=request.step, step=step)))
        self.batches.update({empty: [] for empty in range(request.step, step)})
        await self._notify()
        if self.hold_epoch_replies:
            await asyncio.Event().wait()
        return pb.EpochReply(epoch=len(self.epochs), step=step)

    async def Examples(self, request: pb.ExamplesRequest, context: Any) -> AsyncIterator[pb.Example]:
        if self.script.examples_error is not None:
            await context.abort(status_of(self.script.examples_error), error_to_json(self.script.examples_error))
        self.examples_asked.append((request.cursor, request.count, context.time_remaining()))
        in_time = self.script.examples_in_time.pop(0) if self.script.examples_in_time else request.count
        for index in range(request.cursor, request.cursor + request.count):
            if index == request.cursor + in_time:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "it takes too long")
            answer = [*TOKENIZER.encode(str((index + request.flawed) % 10)), TOKENIZER.eos_id]
            yield pb.Example(example_id=index, prompt_token_ids=_prompt(index), answer_token_ids=answer)

    async def HeldOut(self, request: pb.HeldOutRequest, context: Any) -> AsyncIterator[pb.Example]:
        for index in range(min(request.count, self.script.held_out)):
            yield pb.Example(example_id=1000 + index, prompt_token_ids=_prompt(1000 + index))

    async def ScoreCompletions(
        self, requests: AsyncIterator[pb.Completion], context: Any
    ) -> AsyncIterator[pb.CompletionScore]:
        async for completion in requests:
            exact = TOKENIZER.decode(completion.token_ids) == str(completion.example_id % 10)
            yield pb.CompletionScore(example_id=completion.example_id, reward=float(exact), exact=exact)

    async def Evaluate(self, request: pb.EvaluationRequest, context: Any) -> pb.EvaluationReply:
        """Find one completion of every problem right."""
        self.evaluations.append(request)
        if not self.script.evaluated_by_peers:
            return pb.EvaluationReply(ended=True, given_up="there is no peer")
        scores = [pb.ProblemScore(exact=1, reward=0.25) for _ in range(request.problems)]
        return pb.EvaluationReply(ended=True, scored=request.problems, scores=scores)

    async def NextBatch(self, request: pb.BatchRequest, context: Any) -> AsyncIterator[pb.BatchPart]:
        step = request.step
        replayed = step in self.batches
        if self.script.final_from is not None and step >= self.script.final_from:
            yield pb.BatchPart(header=pb.BatchHeader(step=step, ready=False, final=True))
            return
        if not replayed and not await self._may_form(step, request.wait_s):
            header = pb.BatchHeader(step=step, waiting_for="rollouts of a script", paused=self.script.paused)
            yield pb.BatchPart(header=header)
            return
        rollouts = self.batches.setdefault(step, self._form(step))
        self.served.append((step, replayed))
        header = pb.BatchHeader(step=step, ready=True, rollout_count=len(rollouts), replayed=replayed)
        header.publish_every_steps = self.script.kappa(step)
        header.staleness_limit = self.script.raised_limit(step)
        yield pb.BatchPart(header=header)
        for rollout in rollouts:
            yield pb.BatchPart(rollouts=[rollout])

    async def Announce(self, request: pb.VersionAnnouncement, context: Any) -> pb.AnnounceReply:
        verified = verify_announcement(request, run_id=RUN_ID, learner_public_key=self.authority.learner.public_key)
        first = verified.version not in self.announcements
        self.announced.append(verified.version)
        self.contents.setdefault(verified.version, set()).add(request.SerializeToString(deterministic=True))
        self.announcements.setdefault(verified.version, verified)
        await self._notify()
        return pb.AnnounceReply(first_time=first)

    async def ReportStep(self, request: pb.StepReport, context: Any) -> pb.Empty:
        self.step_reports.append(request)
        await self._notify()
        return pb.Empty()

    async def ReportStatus(self, request: pb.LearnerStatus, context: Any) -> pb.StatusReply:
        self.statuses.append(request)
        await self._notify()
        return pb.StatusReply(profile=self.script.profile)

    # -- batches

    async def _may_form(self, step: int, wait_s: float) -> bool:
        def ready() -> bool:
            gate = self.script.batch_gate
            return (
                bool(self.announcements) and self._version(step) in self.announcements and (not gate or gate.is_set())
            )

        try:
            await self.until(ready, min(wait_s, 0.3))
        except TimeoutError:
            return False
        return True

    def _version(self, step: int) -> int:
        if self.script.newest_usable_version is not None:
            return self.script.newest_usable_version(step)
        return max(version for version in self.announcements if version <= step)

    def _form(self, step: int) -> list[pb.TrainingRollout]:
        script = self.script
        random = np.random.default_rng(step)
        rollouts = []
        for index in range(script.groups_per_step * script.samples_per_group):
            group = step * script.groups_per_step + index // script.samples_per_group
            tokens = random.integers(2, TOKENIZER.size, script.max_new_tokens).tolist()
            segment = pb.Segment(
                role=pb.ASSISTANT,
                version=self._version(step),
                peer_id=self.authority.origin.peer_id,
                packed_ids=pack_ids(tokens),
                loss_mask=b"\1" * len(tokens),
                reported_logprobs=[-1000.0] * len(tokens),
                sampler="jax-cpu",
                routes=b"" if script.routes is None else _routes(script.routes, len(tokens), random),
            )
            rollouts.append(
                pb.TrainingRollout(
                    rollout_id=1 + step * script.groups_per_step * script.samples_per_group + index,
                    group_id=group,
                    sample_index=index % script.samples_per_group,
                    prompt_token_ids=_prompt(group),
                    segments=[segment],
                    sampling=self._sampling(),
                    reward=float(random.integers(0, 2)),
                    finish_reason=pb.LENGTH,
                )
            )
        script.spoil(step, rollouts)
        return rollouts

    def _sampling(self) -> pb.Sampling:
        return pb.Sampling(
            temperature=1.0, max_new_tokens=self.script.max_new_tokens, stop_token_ids=[TOKENIZER.eos_id]
        )

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def _routes(shape: RouteShape, tokens: int, random: np.random.Generator) -> bytes:
    """Return random experts for each token."""
    chosen = random.random((tokens, shape.layers, shape.experts)).argsort(axis=-1)[..., : shape.experts_per_token]
    return shape.to_bytes(chosen)


def _prompt(index: int) -> list[int]:
    return TOKENIZER.encode(f"{index % 10}+0=")


# ---------------------------------------------------------------- origin


@dataclass
class Received:
    """One version at the origin."""

    verified: VerifiedVersion
    hashes: bytes = b""
    chunks: dict[int, bytes] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.chunks) == self.verified.keyframe.chunk_count

    @property
    def state(self) -> bytes:
        return b"".join(self.chunks[index] for index in sorted(self.chunks))


class ScriptedOrigin:
    """An origin that receives versions over links; it drops each next link after a number of ``break_after`` chunks."""

    def __init__(self, authority: Authority, *, role: str = "origin") -> None:
        self.authority = authority
        self.role = role
        self.versions: dict[int, Received] = {}
        self.ahead: dict[int, dict[int, bytes]] = {}  # chunks of versions that are not announced
        self.came_ahead: set[int] = set()  # versions of which such chunks came
        self.held: list[int] = []
        self.links = 0
        self.chunks_received = 0
        self.break_after: list[int] = []  # chunks after which each next link is dropped
        self._streams: list[LinkStream] = []
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> str:
        application = web.Application()
        application.router.add_get(PATH, self._link)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        credentials = self.authority.credentials(self.authority.origin, self.role)
        site = web.TCPSite(self._runner, LOOPBACK, port, ssl_context=credentials.ssl_server_context())
        await site.start()
        return f"{LOOPBACK}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        for stream in self._streams:
            stream.end("the script is over")
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _link(self, request: web.Request) -> web.StreamResponse:
        self.links += 1
        response = web.StreamResponse(status=101, headers=UPGRADE_HEADERS)
        await response.prepare(request)
        assert request.transport is not None
        lost = asyncio.Event()
        stream = LinkStream.take_over(request.transport, SocketOptions(), write_timeout_s=5.0, on_lost=lost.set)
        self._streams.append(stream)
        with suppress(RollcastError):  # the caller found another peer than it expected
            await greet(stream, caller_of(request.transport).peer_id, RUN_ID, 5.0, dialled=False)
        stream.start(_ScriptedLink(self, stream, self.break_after.pop(0) if self.break_after else None))
        await lost.wait()
        return response

    def message(self, message: pb.LinkMessage) -> list[pb.LinkMessage]:
        match message.WhichOneof("body"):
            case "announcement":
                verified = verify_announcement(
                    message.announcement, run_id=RUN_ID, learner_public_key=self.authority.learner.public_key
                )
                received = self.versions.setdefault(verified.version, Received(verified))
                if received.complete:
                    return [self._hold(received)]
                return [pb.LinkMessage(want=pb.Want(version=verified.version, chunk_list=True))]
            case "chunk_list":
                received = self.versions[message.chunk_list.version]
                received.verified.keyframe.check_chunk_list(message.chunk_list.hashes)
                received.hashes = message.chunk_list.hashes
                for index, payload in self.ahead.pop(received.verified.version, {}).items():
                    with suppress(RollcastError):
                        check_chunk(received.hashes, index, payload)
                        received.chunks[index] = payload
            case "have":
                assert message.have.complete
                received = self.versions[message.have.version]
                if received.complete:
                    return [self._hold(received)]
                missing = [index for index in range(message.have.chunk_count) if index not in received.chunks]
                return [pb.LinkMessage(request=pb.Request(version=message.have.version, indices=missing))]
        return []

    def chunk(self, frame: ChunkFrame) -> list[pb.LinkMessage]:
        assert frame.stripe == NO_STRIPE
        received = self.versions.get(frame.version)
        if received is None:
            self.came_ahead.add(frame.version)
            self.ahead.setdefault(frame.version, {})[frame.index] = bytes(frame.payload)
            return []
        check_chunk(received.hashes, frame.index, frame.payload)
        assert frame.index not in received.chunks, "an unrequested chunk"
        received.chunks[frame.index] = bytes(frame.payload)
        self.chunks_received += 1
        return [self._hold(received)] if received.complete else []

    def _hold(self, received: Received) -> pb.LinkMessage:
        if state_hash(received.state) != received.verified.record.state_hash:
            raise RollcastError("the scripted origin received another state")
        self.held.append(received.verified.version)
        return pb.LinkMessage(held=pb.VersionHeld(version=received.verified.version))


class _ScriptedLink:
    """One link to the scripted origin."""

    def __init__(self, origin: ScriptedOrigin, stream: LinkStream, chunks_left: int | None) -> None:
        self._origin = origin
        self._stream = stream
        self._chunks_left = chunks_left

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        for frame in frames:
            match frame:
                case LinkMessageFrame(message):
                    answers = self._origin.message(message)
                case ChunkFrame():
                    if self._chunks_left == 0:
                        self._stream.end("the script breaks it")
                        return
                    if self._chunks_left is not None:
                        self._chunks_left -= 1
                    answers = self._origin.chunk(frame)
            for answer in answers:
                self._stream.send(answer)

    def drained(self) -> None:
        return

    def closed(self, reason: str, code: str) -> None:
        return


# ---------------------------------------------------------------- both


@dataclass
class World:
    """A coordinator, an origin, and the learner's folder."""

    authority: Authority
    coordinator: ScriptedCoordinator
    origin: ScriptedOrigin
    grpc_port: int
    run_folder: Path

    @property
    def learner_credentials(self) -> TlsCredentials:
        return self.authority.credentials(self.authority.learner, "learner")

    @property
    def origin_peer_id(self) -> PeerId:
        return self.authority.origin.peer_id
