"""Test the findings of a check, and which of the coordinator's addresses it uses."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest

from peer.config import EngineConfig, LinkConfig, PeerConfig
from peer.donor.check.dial_back import DialledBack
from peer.donor.check.findings import (
    Finding,
    bare_room_findings,
    dial_finding,
    link_findings,
    machine_findings,
    ordered,
    place_findings,
    room_findings,
    speed_findings,
    worth_finding,
)
from peer.donor.check.run import first_reached
from peer.donor.machine.decode_speed import Decoded
from peer.donor.machine.facts import Accelerator, MachineFacts
from peer.engines.vllm.environment import VllmPython
from peer.reachability.link_speed import LinkMeasured
from peer.reachability.nat_kind import Seen
from rollcast.policy.config import ModelConfig
from rollcast.runtime.errors import MissingExtra, Unreachable
from rollcast.wire.ids import RunId
from rollcast.wire.joining.diagnose import HopFailed
from rollcast.wire.joining.invite import Invite

GIB = 2**30

REFUSED = HopFailed("connection", "192.0.2.1:7400", "192.0.2.1:7400 refuses the connection")

MACHINE = MachineFacts(
    system="Linux 6.1",
    architecture="x86_64",
    python="3.12.1",
    rollcast="0.1.0",
    cores=8,
    memory_bytes=32 * GIB,
    memory_free_bytes=24 * GIB,
    disk_free_bytes=100 * GIB,
    engines={"jax": "0.10.2"},
)

CONFIG = PeerConfig(engine=EngineConfig(concurrent_rollouts=16))

VLLM = VllmPython(Path("/v/python"), "0.32.0")

FOUR_B = ModelConfig(preset="qwen3-4b")

DECODED = Decoded(800.0, 64, 4_000_000_000, 12.0, 6.0, 4800, "jax 0.10.2, 1 x NVIDIA L4 (gpu)")


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.topic: finding.level for finding in findings}


def test_a_fit_machine_has_no_fixes() -> None:
    found = machine_findings(MACHINE, CONFIG) + room_findings(
        MACHINE, CONFIG, ModelConfig(vocabulary_size=32), 600, runs=False
    )
    assert set(levels(found).values()) == {"ok"}
    assert not any(finding.code or finding.fix for finding in found if finding.topic not in ("memory", "disk"))


@pytest.mark.parametrize(
    ("engine", "vllm", "says"),
    [
        ({}, None, "jax 0.10.2, because neither engine.kind nor engine.python is set"),
        ({"kind": "jax"}, None, 'jax 0.10.2, because engine.kind = "jax"'),
        ({"python": "/v/python"}, VLLM, "vllm 0.32.0 (/v/python), because engine.python is set"),
        ({"kind": "vllm"}, VLLM, 'vllm 0.32.0 (/v/python), because engine.kind = "vllm"'),
        ({"kind": "vllm"}, MissingExtra("vLLM is not installed", fix="install it"), "vLLM is not installed"),
    ],
)
def test_the_check_says_which_engine_would_generate_and_why(
    engine: dict[str, str], vllm: VllmPython | MissingExtra | None, says: str
) -> None:
    found = machine_findings(MACHINE, PeerConfig(engine=engine), vllm=vllm)
    (about,) = [one for one in found if one.topic == "engine"]
    assert (about.text, about.level) == (says, "error" if isinstance(vllm, MissingExtra) else "ok")


@pytest.mark.parametrize(
    ("machine", "config", "topic", "level", "code"),
    [
        (replace(MACHINE, engines={}), CONFIG, "engine", "error", "RC105"),
        (replace(MACHINE, python="3.10.4"), CONFIG, "system", "error", "RC105"),
        (replace(MACHINE, system="Darwin 24.0"), CONFIG, "system", "warning", ""),
        (replace(MACHINE, link_port_taken=True), PeerConfig(link=LinkConfig(port=7420)), "ports", "error", "RC102"),
    ],
)
def test_each_fault_of_a_machine_is_a_finding(
    machine: MachineFacts, config: PeerConfig, topic: str, level: str, code: str
) -> None:
    (found,) = [one for one in machine_findings(machine, config) if one.level != "ok"]
    assert (found.topic, found.level, found.code) == (topic, level, code)
    assert found.fix


def test_little_room_is_not_written_as_none() -> None:
    memory, _ = room_findings(MACHINE, CONFIG, ModelConfig(), 16, runs=False)
    assert re.search(r"about \d+(\.\d+)? MB needed", memory.text)


def test_the_runs_model_must_fit() -> None:
    small = replace(MACHINE, memory_free_bytes=4 * GIB, disk_free_bytes=3 * GIB)
    found = room_findings(small, CONFIG, FOUR_B, 600, runs=False)
    assert [(one.topic, one.level, one.code) for one in found] == [
        ("memory", "error", "RC106"),
        ("disk", "error", "RC106"),
    ]
    assert "4.0 GiB of memory free" in found[0].text
    gpu = replace(small, accelerators=(Accelerator("L4", 24 * GIB, 23 * GIB),), disk_free_bytes=100 * GIB)
    assert set(levels(room_findings(gpu, CONFIG, FOUR_B, 600, runs=False)).values()) == {"ok"}
    busy = replace(gpu, accelerators=(Accelerator("L4", 24 * GIB, 1 * GIB),))
    assert levels(room_findings(busy, CONFIG, FOUR_B, 600, runs=False))["memory"] == "error"
    assert levels(room_findings(busy, CONFIG, FOUR_B, 600, runs=True))["memory"] == "ok"  # our own peer has it


def test_a_gpu_that_has_no_room_for_all_rollouts_generates_fewer_at_once() -> None:
    gpu = replace(MACHINE, accelerators=(Accelerator("RTX 4090", 24 * GIB, 24 * GIB),), disk_free_bytes=100 * GIB)
    found = room_findings(gpu, CONFIG, FOUR_B, 8192, runs=False)[0]
    assert found.level == "ok"
    at_once = re.search(r"needed for the run's model and (\d+) of the longest rollouts at once", found.text)
    assert at_once is not None
    assert 4 <= int(at_once[1]) < CONFIG.engine.concurrent_rollouts
    alone = PeerConfig(engine=CONFIG.engine.model_copy(update={"cache_tokens": 64 * 8192}))
    assert room_findings(gpu, alone, FOUR_B, 8192, runs=False)[0].level == "error", "the owner wants that much"


def test_a_model_that_fits_no_gpu_is_divided_among_the_machines() -> None:
    eight_b = ModelConfig(preset="qwen3-8b")
    gpus = replace(MACHINE, accelerators=(Accelerator("L4", 12 * GIB, 12 * GIB),) * 4, disk_free_bytes=200 * GIB)
    found = room_findings(gpus, CONFIG, eight_b, 600, runs=False)[0]
    assert found.level == "ok"
    assert "on each of 4 GPUs" in found.text
    alone = PeerConfig(engine=CONFIG.engine.model_copy(update={"devices": 1}))
    assert room_findings(gpus, alone, eight_b, 600, runs=False)[0].level == "error"


def test_without_a_run_only_a_full_disk_is_an_error() -> None:
    assert set(levels(bare_room_findings(MACHINE)).values()) == {"ok"}
    assert levels(bare_room_findings(replace(MACHINE, disk_free_bytes=GIB)))["disk"] == "error"


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (LinkMeasured(0.02, 0.4, True, 5e7, 5e6), {"clock": "ok", "link": "ok"}),
        (LinkMeasured(0.02, -80.0, True, 5e7, 5e6), {"clock": "warning", "link": "ok"}),
        (LinkMeasured(0.02, 7200.0, True, 5e7, 5e6), {"clock": "error", "link": "ok"}),
        (
            LinkMeasured(0.02, 0.0, False, 5e7, 1e4, control_failed=REFUSED),
            {"clock": "ok", "ports": "error", "link": "warning"},
        ),
        (LinkMeasured(problems=(Unreachable("nobody"),)), {"link": "error"}),
    ],
)
def test_findings_about_links(link: LinkMeasured, expected: dict[str, str]) -> None:
    assert levels(link_findings(link)) == expected


def test_each_address_of_the_coordinator_is_named_with_the_hop_that_fails() -> None:
    (one,) = place_findings([REFUSED], reached=True)
    assert (one.level, one.code) == ("warning", "RC203")
    assert "connection: 192.0.2.1:7400 refuses the connection" in one.text
    assert [one.level for one in place_findings([REFUSED, REFUSED], reached=False)] == ["error", "error"]


def test_a_machine_that_cannot_be_dialled_is_no_error() -> None:
    assert dial_finding(DialledBack(7420, "1.2.3.4", True)).level == "ok"
    closed = dial_finding(DialledBack(7420, "1.2.3.4", False))
    assert (closed.level, closed.code) == ("warning", "RC205")
    assert dial_finding(DialledBack(0, "", False)).code == "RC102"


def test_the_nat_kind_is_named_and_the_fix_has_four_steps() -> None:
    seen = Seen("192.168.1.5", "1.2.3.4", 5001, 5002, False)
    closed = dial_finding(DialledBack(33333, "1.2.3.4", False), seen)
    assert "(symmetric)" in closed.text
    assert "this machine (1.2.3.4, port 33333)" in closed.text
    assert "only those behind a full cone can connect; other links need third machines (relays)" in closed.text
    unseen = dial_finding(DialledBack(7420, "", False), seen)
    assert "this machine (1.2.3.4, port 7420)" in unseen.text
    assert 'link.advertise = "1.2.3.4:7420"' in unseen.fix
    assert [line[:2] for line in closed.fix.splitlines()] == ["1.", "2.", "3.", "4."]
    assert "7420" in closed.fix  # not the one that the system chose for a moment
    assert "33333" not in closed.fix
    assert "forwards the port" in dial_finding(DialledBack(7420, "1.2.3.4", True), seen).text


def test_a_gpu_that_does_not_compute_is_pointed_out() -> None:
    assert [one.level for one in speed_findings(DECODED, MACHINE)] == ["ok"]
    gpu = replace(MACHINE, accelerators=(Accelerator("L4", GIB, GIB),))
    on_cpu = replace(DECODED, hardware="jax 0.10.2, 1 x cpu (cpu)")
    assert [one.level for one in speed_findings(on_cpu, gpu)] == ["ok", "warning"]


@pytest.mark.parametrize(("meets", "level"), [(True, "ok"), (None, "warning"), (False, "error")])
def test_the_judgement_is_a_finding(meets: bool | None, level: str) -> None:
    found = worth_finding({"meets": meets, "sentence": "so it is", "what_would_help": ["more"]})
    assert (found.level, found.text) == (level, "so it is")


def test_errors_come_first() -> None:
    mixed = [Finding("ok", "a", ""), Finding("warning", "b", ""), Finding("error", "c", ""), Finding("error", "d", "")]
    assert [finding.topic for finding in ordered(mixed)] == ["c", "d", "b", "a"]


async def test_the_first_address_whose_ports_answer_is_used_and_the_others_are_explained() -> None:
    async def taken(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(taken, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        invite = Invite(
            run_id=RunId("run"),
            role="peer",
            http_url=f"https://no-such-host.invalid:{port}",
            grpc_address=f"no-such-host.invalid:{port}",
            ca_sha256="a" * 64,
            learner_public_key="b" * 64,
            token="t",
            further=(f"127.0.0.1:1:{port}",),
        )
        found, failures = await first_reached(invite, ["127.0.0.1"])
        assert found is not None
        assert (found.http_url, found.grpc_address) == (f"https://127.0.0.1:{port}", f"127.0.0.1:{port}")
        assert [(failed.hop, failed.address) for failed in failures] == [
            ("name lookup", f"no-such-host.invalid:{port}"),
            ("connection", "127.0.0.1:1"),
        ]
        assert (await first_reached(invite))[0] is None
