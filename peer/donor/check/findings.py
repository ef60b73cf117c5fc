"""Turn the measurements of `rollcast peer check` into findings: errors first, each with a code and a fix. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from peer.config import LinkConfig, PeerConfig
from peer.donor.check.dial_back import DialledBack
from peer.donor.install.join import LINK_PORT
from peer.donor.machine.decode_speed import Decoded
from peer.donor.machine.facts import MachineFacts
from peer.engines.vllm.environment import VllmPython
from peer.reachability.link_speed import LinkMeasured, mbit_s
from peer.reachability.nat_kind import Seen, four_steps, nat_kind, sentence, way_round
from rollcast.policy.config import ModelConfig
from rollcast.policy.sizing.fitting import cache_that_fits
from rollcast.policy.sizing.memory import PeerShape, paged_tokens, peer_memory, snapshot_bytes, version_bytes
from rollcast.runtime.errors import (
    ClockWrong,
    MachineUnfit,
    MissingExtra,
    NotDialable,
    PortInUse,
    RollcastError,
)
from rollcast.runtime.install import install_command
from rollcast.wire.identity.clock import CLOCK_FIX
from rollcast.wire.joining.diagnose import HopFailed

Level = Literal["error", "warning", "ok"]
_ORDER: tuple[Level, ...] = ("error", "warning", "ok")

SKEW_ERROR_S = 3000.0  # certificates are valid from one hour before they are issued
SKEW_WARNING_S = 30.0
SLOW_LINK_BYTES_PER_S = 125_000.0  # 1 Mbit/s
_DISK_VERSIONS = 4.0  # full versions that must fit on disk at once, deltas included
_DISK_LEAST = 2e9
_PYTHON_LEAST = (3, 11)
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        topic: one word: gpu, memory, disk, clock, ports, link, speed.
        text: the finding, with figures.
        code: code of the error that it is or would become; empty if all is well.
        fix: what to do about it; empty if nothing.
    """

    level: Level
    topic: str
    text: str
    code: str = ""
    fix: str = ""

    @classmethod
    def of(cls, level: Level, topic: str, error: RollcastError) -> Finding:
        """Return an error as a finding."""
        return cls(level, topic, "; ".join(filter(None, (error.what, error.cause))), error.code, error.fix)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings sorted: errors, warnings, then the rest, each in their order."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.level))


def machine_findings(
    machine: MachineFacts, config: PeerConfig, *, vllm: VllmPython | RollcastError | None = None, runs: bool = False
) -> list[Finding]:
    """Return the findings about the machine itself.

    Args:
        vllm: the interpreter that has vLLM, or why there is none; None: another engine is used.
        runs: whether a peer runs here already and uses the port.
    """
    software, accelerator = system_findings(machine)
    found = [software, _engine(machine, config, vllm), accelerator]
    if config.link.port and not runs:
        found.append(_port(machine, config))
    return [one for one in found if one is not None]


def system_findings(machine: MachineFacts) -> tuple[Finding, Finding]:
    """Return the findings about the system with its Python, and about the accelerators."""
    return _software(machine), _accelerator(machine)


def _software(machine: MachineFacts) -> Finding:
    said = f"{machine.system}, {machine.architecture}, Python {machine.python}, rollcast {machine.rollcast}"
    release = tuple(int(part) for part in machine.python.split(".")[:2])
    if release < _PYTHON_LEAST:
        fix = "install Rollcast with Python 3.11 or later: run its install command again, with uv's --python 3.12"
        return Finding("error", "system", said, MissingExtra.code, fix)
    if not machine.system.startswith("Linux"):
        return Finding(
            "warning", "system", f"{said}: this system is not tested", "", "docs/donor.md lists tested systems"
        )
    where = " (container)" if machine.is_container else " (WSL2)" if machine.is_wsl else ""
    return Finding("ok", "system", said + where)


def _engine(machine: MachineFacts, config: PeerConfig, vllm: VllmPython | RollcastError | None) -> Finding:
    """Return which engine would generate, its release, and which setting chose it."""
    engine = config.engine
    why = f'because engine.kind = "{engine.kind}"'
    if isinstance(vllm, RollcastError):
        return Finding.of("error", "engine", vllm)
    if vllm is not None:
        why = why if engine.kind == "vllm" else "because engine.python is set"
        return Finding("ok", "engine", f"vllm {vllm.release} ({vllm.path}), {why}")
    if engine.chosen_kind == "sglang":
        return Finding("ok", "engine", f"the SGLang server at {engine.sglang.url}, {why}")
    if not machine.engines:
        fix = install_command("peer")
        return Finding("error", "engine", "jax is not installed", MissingExtra.code, fix)
    why = why if engine.kind == "jax" else "because neither engine.kind nor engine.python is set"
    return Finding("ok", "engine", f"jax {machine.engines['jax']}, {why}")


def _accelerator(machine: MachineFacts) -> Finding:
    if not machine.accelerators:
        return Finding("ok", "gpu", f"no NVIDIA GPU; {machine.cores} cores compute")
    each = (
        f"{one.name}, {one.memory_free_bytes / _GIB:.1f} of {one.memory_bytes / _GIB:.1f} GiB free"
        for one in machine.accelerators
    )
    return Finding("ok", "gpu", "; ".join(each))


def _port(machine: MachineFacts, config: PeerConfig) -> Finding:
    if machine.link_port_taken:
        error = PortInUse(
            f"port {config.link.port} for chunk links is taken", fix="stop what listens there, or change link.port"
        )
        return Finding.of("error", "ports", error)
    return Finding("ok", "ports", f"port {config.link.port} for chunk links is free")


def room_findings(
    machine: MachineFacts, config: PeerConfig, model: ModelConfig, row_tokens: int, *, runs: bool
) -> list[Finding]:
    """Return whether the run's model fits into memory and onto the disk.

    Args:
        row_tokens: length of the longest prompt and completion together, in tokens.
        runs: whether a peer runs here already: then total instead of free memory is compared.
    """
    engine = config.engine
    devices = engine.devices_of(len(machine.accelerators))
    shape = PeerShape(
        engine.concurrent_rollouts,
        row_tokens,
        engine.cache_tokens,
        versions_on_device=engine.versions_on_device_min,
        devices=devices,
        states_in_memory=config.states_in_memory,
    )
    needed = peer_memory(model, shape)
    memory = needed.peak + (0 if machine.accelerators else needed.host_peak)
    have = machine.compute_memory_bytes if runs else machine.compute_memory_free_bytes
    what = "GPU memory" if machine.accelerators else "memory"
    if devices > 1:
        what = f"memory on each of {devices} GPUs"
    at_once = engine.concurrent_rollouts
    if memory > have and machine.accelerators and not engine.cache_tokens:  # engines size their cache by the device
        one = paged_tokens(row_tokens)
        if fewer := cache_that_fits(model, shape, have) // one:
            at_once, memory = fewer, peer_memory(model, replace(shape, cache_tokens=fewer * one)).peak
    disk = max(_DISK_LEAST, snapshot_bytes(model) + (_DISK_VERSIONS - 1) * version_bytes(model))
    return [
        _room("memory", what, memory, have, f"{at_once} of the longest rollouts at once", _lower(config)),
        _room("disk", "disk", disk, machine.disk_free_bytes, "some versions", "free some space, or move state_folder"),
    ]


def _lower(config: PeerConfig) -> str:
    return f"close other programs, or set engine.concurrent_rollouts below {config.engine.concurrent_rollouts}"


def _room(topic: str, what: str, needed: float, have: float, of: str, fix: str) -> Finding:
    least = f"{needed / _GIB:.1f} GiB" if needed >= 0.1 * _GIB else f"{needed / 1e6:.3g} MB"
    said = f"{have / _GIB:.1f} GiB of {what} free, about {least} needed for the run's model and {of}"
    if have < needed:
        return Finding("error", topic, said, MachineUnfit.code, fix)
    return Finding("ok", topic, said)


def bare_room_findings(machine: MachineFacts) -> list[Finding]:
    """Return findings about memory and disk when no run's model is known to compare them with."""
    found = [Finding("ok", "memory", f"{machine.memory_free_bytes / _GIB:.1f} GiB free")]
    disk = f"{machine.disk_free_bytes / _GIB:.1f} GiB free where the state folder is"
    if machine.disk_free_bytes < _DISK_LEAST:
        fix = "free some space, or move state_folder to another disk"
        return [*found, Finding("error", "disk", f"{disk}, at least 2 GB are needed", MachineUnfit.code, fix)]
    return [*found, Finding("ok", "disk", disk)]


def place_findings(failures: Sequence[HopFailed], *, reached: bool) -> list[Finding]:
    """Return a finding for each address at which the coordinator was not reached.

    Args:
        reached: whether it was reached at another address.
    """
    level: Level = "warning" if reached else "error"
    what = "the coordinator" + (" cannot be reached at one of its addresses" if reached else " cannot be reached")
    return [Finding.of(level, "link", failed.as_error(what)) for failed in failures]


def link_findings(link: LinkMeasured) -> list[Finding]:
    """Return the findings about the link to the coordinator."""
    found = [Finding.of("error", "link", problem) for problem in link.problems]
    if link.skew_s is not None:
        found.append(_clock(link.skew_s))
    if link.control_failed is not None:
        error = link.control_failed.as_error("the coordinator's control port cannot be used from here")
        found.append(Finding.of("error", "ports", error))
    rates = (("download", link.download_bytes_per_s), ("upload", link.upload_bytes_per_s))
    measured = [(name, rate) for name, rate in rates if rate is not None]
    if measured:
        found.append(_rates(measured, link.rtt_s))
    return found


def _clock(skew_s: float) -> Finding:
    said = f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} the coordinator's"
    if abs(skew_s) <= SKEW_WARNING_S:
        return Finding("ok", "clock", f"{said} (to within a second)")
    return Finding("error" if abs(skew_s) > SKEW_ERROR_S else "warning", "clock", said, ClockWrong.code, CLOCK_FIX)


def _rates(measured: Sequence[tuple[str, float]], rtt_s: float | None) -> Finding:
    said = ", ".join(f"{name} {mbit_s(rate)}" for name, rate in measured)
    said += "" if rtt_s is None else f", round trip {rtt_s * 1000:.0f} ms"
    if min(rate for _, rate in measured) < SLOW_LINK_BYTES_PER_S:
        fix = "use a cable or a less busy network; receiving a version takes long over such a link"
        return Finding("warning", "link", said, MachineUnfit.code, fix)
    return Finding("ok", "link", said)


def dial_finding(dialled: DialledBack, seen: Seen | None = None, link: LinkConfig | None = None) -> Finding:
    """Return whether other peers can dial this machine, and what is in between. If they cannot, that costs speed, but
    is no error.

    Args:
        link: the configuration; None: the defaults.
    """
    link = link or LinkConfig()
    if not dialled.port:
        return Finding(
            "warning", "ports", "no port could be opened for others to dial", PortInUse.code, "change link.port"
        )
    kind = nat_kind(seen, dialled=dialled.reached)
    why = f"; {sentence(kind)}" if sentence(kind) else ""
    if dialled.reached:
        return Finding("ok", "ports", f"others can dial this machine at {dialled.address}, port {dialled.port}{why}")
    outside = dialled.address or (seen.address if seen is not None else "")
    where = f"{outside}, port {dialled.port}" if outside else f"port {dialled.port}"
    fix = four_steps(kind, local=seen.local if seen is not None else "", address=outside, port=link.port or LINK_PORT)
    meanwhile = way_round(kind, punch=link.punch, p2p=link.p2p)
    said = f"others cannot dial this machine ({where}): it takes part nevertheless, and dials them"
    said += f"{why}{meanwhile and f'; {meanwhile}'}"
    return Finding("warning", "ports", said, NotDialable.code, fix)


def speed_findings(decoded: Decoded, machine: MachineFacts) -> list[Finding]:
    """Return the findings about the short test of generation."""
    found = [
        Finding(
            "ok",
            "speed",
            f"{decoded.tokens_per_s:,.0f} tokens/s, {decoded.concurrent_rollouts} rollouts at once, model of "
            f"{decoded.parameters:,} parameters, {decoded.hardware}; first token after {decoded.ready_s:.1f} s",
        )
    ]
    if decoded.computation:
        found.append(Finding("ok", "engine", decoded.computation))
    if machine.accelerators and "(cpu)" in decoded.hardware:
        fix = f"install jax for its driver: {install_command('peer', 'cuda12')}"
        text = "there is a GPU, but the engine computes on the processor"
        found.append(Finding("warning", "gpu", text, MissingExtra.code, fix))
    return found


def worth_finding(worth: dict[str, Any]) -> Finding:
    """Return the coordinator's judgement of what this machine would contribute."""
    sentence, meets = str(worth.get("sentence", "")), worth.get("meets")
    if meets is False:
        helps = "; ".join(str(one) for one in worth.get("what_would_help", ()))
        return Finding("error", "worth", sentence, MachineUnfit.code, helps)
    return Finding("ok" if meets else "warning", "worth", sentence)
