"""Run `rollcast peer check`: measure machine, link, reachability and generation speed, and collect the findings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peer.config import LinkConfig, PeerConfig
from peer.donor.check import findings as checking
from peer.donor.check.dial_back import DialledBack, dialled_back
from peer.donor.check.findings import Finding
from peer.donor.install.join import LINK_PORT
from peer.donor.install.running import holder_of
from peer.donor.machine.decode_speed import PROMPT_TOKENS, Decoded, timed_decode
from peer.donor.machine.facts import MachineFacts, machine_facts
from peer.engines.base import Engine
from peer.engines.vllm.environment import VllmPython, find_vllm
from peer.reachability.link_speed import InviteHttp, LinkMeasured, control_port, measure_link
from peer.reachability.nat_kind import NatKind, nat_kind
from peer.reachability.nat_probe import seen_from_outside
from peer.startup import make_engine
from rollcast.policy.config import ModelConfig
from rollcast.policy.published import ARCHITECTURES
from rollcast.runtime import errors
from rollcast.runtime.errors import ConfigError, JoinRefused, ReleaseMismatch, RollcastError
from rollcast.wire.donor.control_socket import request
from rollcast.wire.joining.diagnose import HopFailed, failed_hop
from rollcast.wire.joining.invite import Invite
from rollcast.wire.joining.release import check_release

_NEW_TOKENS_MAX = 512  # longer rollouts would only make the measurement longer
_TINY_VOCABULARY = 64
_GPU_MODEL = "qwen3-0.6b"  # measured on a GPU if neither the run nor the user names a model

Progress = Callable[[str], None]


async def first_reached(invite: Invite, also: Sequence[str] = ()) -> tuple[Invite | None, list[HopFailed]]:
    """Return the invite with the first address whose two ports accept connections, and the failures of those before it.

    The invite is None if no address accepts connections.

    Args:
        also: further addresses of the coordinator (rollcast.wire.joining.bootstrap).
    """
    failures: list[HopFailed] = []
    for place in invite.places(also):
        http = place.http_url.partition("://")[2]
        failed = await failed_hop(http, None) or await failed_hop(place.grpc_address, None)
        if failed is None:
            return replace(invite, http_url=place.http_url, grpc_address=place.grpc_address), failures
        failures.append(failed)
    return None, failures


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """The scope of one check.

    Args:
        invite: the invite to a run; None: the machine is checked without a coordinator.
        is_member: whether this machine has joined with the invite: it then stays a member when that has expired.
        model: name of the model to measure; empty: the run's, or a default for this machine.
        decode: whether to measure the speed of generation.
        link: whether to measure the rates of the link and who can dial this machine.
    """

    config: PeerConfig
    state_folder: Path
    invite: Invite | None = None
    is_member: bool = False
    model: str = ""
    decode: bool = True
    link: bool = True


@dataclass(slots=True)
class CheckResult:
    """The result of a check; ``findings`` are sorted, errors first.

    Args:
        link: None: not measured.
        decoded: speed of generation; None: not measured.
        needs: what the run needs of a peer, from the coordinator; None: not asked.
        worth: the planner's judgement of this machine; None: not asked.
        nat: kind of router between this machine and peers that dial it; None: not checked.
    """

    machine: MachineFacts
    findings: list[Finding] = field(default_factory=list)
    link: LinkMeasured | None = None
    decoded: Decoded | None = None
    needs: dict[str, Any] | None = None
    worth: dict[str, Any] | None = None
    nat: NatKind | None = None

    @property
    def exit_status(self) -> int:
        """The exit status of the first error; 0 without one."""
        codes = {cls.code: cls.exit_code for cls in _error_classes()}
        return next((codes.get(one.code, 69) for one in self.findings if one.level == "error"), 0)


def _error_classes() -> list[type[RollcastError]]:
    return [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, RollcastError)]


async def check_machine(
    asked: CheckRequest, progress: Progress, *, engine_factory: Callable[[PeerConfig], Engine] = make_engine
) -> CheckResult:
    """Measure everything that the request allows.

    Args:
        progress: called with a line of progress.

    Raises:
        ConfigError: the requested model is unknown.
    """
    model = _named_model(asked.model) if asked.model else None
    config, runs = asked.config, holder_of(asked.state_folder) is not None
    progress("checking this machine")
    machine = await asyncio.to_thread(
        machine_facts, asked.state_folder, link_host=config.link.host, link_port=0 if runs else config.link.port
    )
    vllm = await asyncio.to_thread(_vllm, config)
    checked = CheckResult(machine, checking.machine_findings(machine, config, vllm=vllm, runs=runs))
    if asked.invite is not None:
        try:
            check_release(asked.invite.release, "peer")
        except ReleaseMismatch as error:
            checked.findings.append(Finding.of("error", "release", error))
        await _ask_coordinator(asked, asked.invite, checked, progress, runs=runs)
    model = model or _run_model(checked.needs)
    if model is None:
        checked.findings += checking.bare_room_findings(machine)
    else:
        checked.findings += checking.room_findings(machine, config, model, _row_tokens(checked.needs), runs=runs)
    fits = not any(one.level == "error" and one.topic in ("memory", "engine") for one in checked.findings)
    if asked.decode and runs:
        checked.findings.append(_running_speed(asked.state_folder))
    elif asked.decode and fits:
        await _decode(asked, model or _default_model(machine, config), checked, progress, engine_factory)
    if asked.invite is not None and checked.needs is not None:
        await _judge(asked, asked.invite, checked, progress)
    if asked.is_member:
        checked.findings = [_of_a_member(one) for one in checked.findings]
    checked.findings = checking.ordered(checked.findings)
    return checked


def _of_a_member(found: Finding) -> Finding:
    """Return a refused invite as a warning: the member's certificate is renewed without it."""
    if found.code != JoinRefused.code or found.level != "error":
        return found
    text = f"{found.text}: this machine stays a member, but its link and its value to the run cannot be measured"
    return replace(found, level="warning", text=text, fix="ask the operator for a new invite, and check with that")


async def _ask_coordinator(
    asked: CheckRequest, invite: Invite, checked: CheckResult, progress: Progress, *, runs: bool
) -> None:
    found, failures = await first_reached(invite, asked.config.coordinators)
    checked.findings += checking.place_findings(failures, reached=found is not None)
    if found is None:
        return
    invite = found
    progress(f"asking {invite.http_url}")
    checked.link = await measure_link(invite, progress) if asked.link else await _quick_link(invite)
    checked.findings += checking.link_findings(checked.link)
    if checked.link.rtt_s is None:
        return
    try:
        async with InviteHttp(invite) as door:
            checked.needs = await door.ask("GET", "/api/v1/worth")
            if asked.link:
                progress(
                    "asking the peer that runs here who can dial it" if runs else "asking the coordinator to dial back"
                )
                await _reach(door, asked, checked, runs=runs)
    except RollcastError as error:
        checked.findings.append(Finding.of("error", "link", error))


async def _reach(door: InviteHttp, asked: CheckRequest, checked: CheckResult, *, runs: bool) -> None:
    """Find out whether other peers can dial the port for links, and what is in between."""
    link = asked.config.link
    dialled = _found_by_the_peer(asked.state_folder, link) if runs else await dialled_back(door, link.port)
    if dialled is None:
        return
    try:
        seen = await seen_from_outside(door)
    except RollcastError:  # a coordinator of an older release; whether others can dial is known without it
        seen = None
    checked.nat = nat_kind(seen, dialled=dialled.reached)
    checked.findings.append(checking.dial_finding(dialled, seen, link))


def _found_by_the_peer(state_folder: Path, link: LinkConfig) -> DialledBack | None:
    """Ask the peer that runs here, and holds the port, whether others could dial it; None: it does not answer."""
    try:
        reach = request(state_folder, {"do": "status"})["reach"]
        host, _, port = str(reach["address"]).partition(" ")[0].rpartition(":")
        reached = reach["reachability"] == "dialable"
    except (RollcastError, KeyError, TypeError):
        return None
    return DialledBack(int(port) if port.isdecimal() else link.port or LINK_PORT, host.strip("[]"), reached)


async def _quick_link(invite: Invite) -> LinkMeasured:
    """Measure round trip and clock only, which moves no more than a few bytes."""
    try:
        async with InviteHttp(invite) as door:
            rtt_s, skew_s = await door.clock()
            return LinkMeasured(rtt_s, skew_s, **await control_port(door))
    except RollcastError as error:
        return LinkMeasured(problems=(error,))


async def _decode(
    asked: CheckRequest,
    model: ModelConfig,
    checked: CheckResult,
    progress: Progress,
    engine_factory: Callable[[PeerConfig], Engine],
) -> None:
    engine: Engine | None = None
    try:
        engine = await asyncio.to_thread(engine_factory, asked.config)
        checked.decoded = await timed_decode(
            engine,
            model,
            concurrent_rollouts=asked.config.engine.concurrent_rollouts,
            new_tokens=min(_NEW_TOKENS_MAX, int((checked.needs or {}).get("new_tokens_max") or _NEW_TOKENS_MAX)),
            progress=progress,
        )
        checked.findings += checking.speed_findings(checked.decoded, checked.machine)
    except RollcastError as error:
        checked.findings.append(Finding.of("error", "speed", error))
    finally:
        if engine is not None:
            await engine.close()


async def _judge(asked: CheckRequest, invite: Invite, checked: CheckResult, progress: Progress) -> None:
    if checked.decoded is None:
        return
    link = checked.link or LinkMeasured()
    caps = asked.config.link
    measured = {
        "tokens_per_s": checked.decoded.tokens_per_s,
        "concurrent_rollouts": checked.decoded.concurrent_rollouts,
        "upload_bytes_per_s": _capped(link.upload_bytes_per_s, caps.upload_mbit_s_max),
        "download_bytes_per_s": _capped(link.download_bytes_per_s, caps.download_mbit_s_max),
        "memory_bytes": float(checked.machine.compute_memory_bytes),
    }
    progress("asking the planner what this machine would contribute")
    try:
        async with InviteHttp(invite) as door:
            checked.worth = await door.ask("POST", "/api/v1/worth", measured)
    except RollcastError as error:
        checked.findings.append(Finding.of("error", "worth", error))
        return
    checked.findings.append(checking.worth_finding(checked.worth))


def _capped(measured: float | None, cap_mbit_s: float | None) -> float | None:
    if cap_mbit_s is None:
        return measured
    return cap_mbit_s * 125_000.0 if measured is None else min(measured, cap_mbit_s * 125_000.0)


def _running_speed(state_folder: Path) -> Finding:
    """Report the speed of the peer that runs here: a second engine at the same time would distort the measurement."""
    try:
        report = request(state_folder, {"do": "status"})
        speed = f"{report['tokens_per_second']:,.0f} tokens/s in its last batches"
    except (RollcastError, KeyError, TypeError) as error:
        speed = f"but its speed is unknown: {error}"
    fix = "to measure anew, stop it first with `rollcast peer finish`"
    return Finding("warning", "speed", f"a peer runs here already, {speed}", "", fix)


def _run_model(needs: dict[str, Any] | None) -> ModelConfig | None:
    """Return the run's model; None: it has no version yet, or its model is of another release."""
    text = (needs or {}).get("model_json")
    if not isinstance(text, str):
        return None
    try:
        return ModelConfig.model_validate_json(text)
    except ValidationError:
        return None  # a model of another release


def _row_tokens(needs: dict[str, Any] | None) -> int:
    return PROMPT_TOKENS + int((needs or {}).get("new_tokens_max") or _NEW_TOKENS_MAX)


def _named_model(name: str) -> ModelConfig:
    if name not in ARCHITECTURES:
        raise ConfigError(f"there is no model {name!r}", fix=f"choose one of {', '.join(ARCHITECTURES)}")
    return ModelConfig(preset=name)


def _vllm(config: PeerConfig) -> VllmPython | RollcastError | None:
    """Return the interpreter that has vLLM, or why there is none; None if another engine is used."""
    if config.engine.chosen_kind != "vllm":
        return None
    try:
        return find_vllm(config.engine.python)
    except RollcastError as error:
        return error


def _default_model(machine: MachineFacts, config: PeerConfig) -> ModelConfig:
    if machine.accelerators:
        return _named_model(_GPU_MODEL)
    if config.engine.chosen_kind == "vllm":  # whose attention on a processor has no smaller heads
        return ModelConfig(vocabulary_size=_TINY_VOCABULARY, query_heads=4, key_value_heads=2, head_size=32)
    return ModelConfig(vocabulary_size=_TINY_VOCABULARY)
