"""Measure which pairs of homes reach each other by dialling at the same time, by kind of router, over TCP and UDP.

Two homes and an observer run in network namespaces. Each home learns from the observer how its port is seen from
outside, gets the other home's address, and both dial (bench.reach.hole_puncher). Nothing but their two routers is
between them; bench/wan/nat.h describes the routers.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from bench.broadcast.broadcast import ended_by_sigterm, working_folder
from bench.machine import Outcome
from bench.systems.base import ROOT, Case, Lines
from bench.systems.rollcast_daemons import Daemons
from bench.wan import build
from bench.wan.network import Network
from bench.wan.scenarios import Nat, Node
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.run_folder import RunFolder

KINDS: tuple[Nat, ...] = get_args(Nat)
#: "libp2p": over TCP, with its noise and yamux, where the extra p2p is installed; "product": links of peers that a
#: coordinator tells when to dial; "product-ipv6": the same through the routers' firewalls for IPv6, which they do not
#: translate.
Method = Literal["tcp", "udp", "libp2p", "product", "product-ipv6"]
METHODS: tuple[Method, ...] = get_args(Method)
_PROGRAM = "bench.reach.hole_puncher"
_LIBP2P_PROGRAM = "bench.reach.libp2p_puncher"
_PRODUCT_PROGRAM = "bench.reach.punching_peer"
_READY_S = 60.0
_AT_ONCE = 10
_ENDS = (1, 2)
_SETTINGS: tuple[str, ...] = ("coordinator.join.peers_max=1000000",)  # each try joins twice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tries", type=int, default=50, help="tries of each pair of routers and method")
    parser.add_argument("--pair", action="append", help="KIND+KIND; repeatable; default: all six")
    parser.add_argument("--method", action="append", choices=METHODS, help="repeatable; default: all available")
    parser.add_argument("--deadline", type=float, default=5.0, help="seconds after which a try has failed")
    parser.add_argument("--skew", type=float, default=0.0, help="seconds by which the second end begins later")


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure the share of tries that got through, and how long that took.

    Raises:
        ConfigError: there is no such pair.
        MissingExtra: see bench.wan.build.
        ProcessFailed, WaitTimedOut: an end did not answer.
    """
    pairs = [_pair(text) for text in arguments.pair or []]
    build.require()
    figures: dict[str, float] = {}
    with ended_by_sigterm():
        for pair in pairs or itertools.combinations_with_replacement(KINDS, 2):
            for method in arguments.method or _available():
                tries = Tries(method, arguments.tries, arguments.deadline, arguments.skew)
                seconds = punched(pair, tries)
                name = f"{method}.{pair[0]}+{pair[1]}"
                print(f"{name}: {len(seconds)} of {arguments.tries}", file=sys.stderr)
                figures[f"{name}.through"] = len(seconds) / arguments.tries
                if seconds:
                    figures[f"{name}.median_s"] = statistics.median(seconds)
                    figures[f"{name}.max_s"] = max(seconds)
    return Outcome({name: getattr(arguments, name) for name in ("tries", "deadline", "skew")}, figures)


@dataclass(frozen=True, slots=True)
class Tries:
    """The tries of one pair and method: ``count`` of them; the second end begins ``skew_s`` after the first."""

    method: Method
    count: int
    deadline_s: float
    skew_s: float = 0.0


def punched(pair: tuple[Nat, Nat], tries: Tries) -> list[float]:
    """Return, for each try that succeeded, the seconds from the order to dial until both ends had each other's nonce.

    Raises:
        ProcessFailed, WaitTimedOut: an end did not answer.
    """
    nodes = [Node(80, 80, 5), *(Node(80, 80, 15, kind) for kind in pair)]
    with Network(nodes) as network, working_folder(None) as folder:
        ends = _Ends(network, tries.method, folder)
        seconds: list[float] = []
        for first in range(0, tries.count, _AT_ONCE):
            seconds += ends.attempt(range(first, min(first + _AT_ONCE, tries.count)), tries)
        return seconds


class _Ends:
    """The running processes of the two homes and the observer."""

    def __init__(self, network: Network, method: Method, folder: Path) -> None:
        self._lines, self._processes = Lines(), list[subprocess.Popen[Any]]()
        observer = network.addresses[0]
        commands = [[_PROGRAM, "--observe", observer]]
        if method in ("product", "product-ipv6"):
            settings = _SETTINGS
            if method == "product-ipv6":
                address = json.dumps(network.addresses_ipv6[0])
                settings += ('coordinator.serve.host="::"', f"coordinator.serve.advertise_host={address}")
            case = Case(network.nodes, 1, network.sockets, folder, _READY_S, settings=settings)
            Daemons(network, case).start_coordinator()
        for end in _ENDS:
            commands.append(self._command(method, network, end, folder))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        for number, command in enumerate(commands):
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
            process = network.spawn(number, [sys.executable, "-m", *command], **pipes)
            self._lines.follow(number, process)
            self._processes.append(process)
        self._lines.count("ready", len(commands), _READY_S)

    def _command(self, method: Method, network: Network, end: int, folder: Path) -> list[str]:
        if method in ("product", "product-ipv6"):
            invite = RunFolder(folder / "run").secrets / "invite-peer.txt"
            return [_PRODUCT_PROGRAM, str(invite), str(folder)]
        program = [_LIBP2P_PROGRAM, str(end)] if method == "libp2p" else [_PROGRAM]
        return [*program, network.inside[end], network.addresses[0]]

    def attempt(self, numbers: Sequence[int], tries: Tries) -> list[float]:
        """Make these tries concurrently; returns the later end's seconds for each that got through."""
        for number, end in itertools.product(numbers, _ENDS):
            self._send(end, {"try": number, "do": "observe", "protocol": tries.method})
        seen = self._answers(len(numbers), _READY_S)
        nonces = {number: secrets.token_hex(8) for number in numbers}
        for end in _ENDS:
            for number in numbers:
                _, address, port = seen[end, number]
                order = {"try": number, "do": "punch", "address": address, "port": int(port), "nonce": nonces[number]}
                self._send(_ENDS[0] + _ENDS[1] - end, order | {"deadline_s": tries.deadline_s})
            time.sleep(tries.skew_s if end == _ENDS[0] else 0.0)
        found = self._answers(len(numbers), tries.deadline_s + _READY_S)
        both = ([found[end, number] for end in _ENDS] for number in numbers)
        return [max(float(one[1]) for one in pair) for pair in both if all(one[0] == "through" for one in pair)]

    def _answers(self, count: int, timeout_s: float) -> dict[tuple[int, int], list[str]]:
        """Return the next answer of both ends to ``count`` tries: its words without the number of the try."""
        found: dict[tuple[int, int], list[str]] = {}
        end_s = time.monotonic() + timeout_s
        while len(found) < count * len(_ENDS):
            end, line = self._lines.next("the ends of a hole", end_s - time.monotonic())
            word, number, *rest = line.split()
            found[end, int(number)] = [word, *rest]
        return found

    def _send(self, end: int, order: dict[str, Any]) -> None:
        stdin = self._processes[end].stdin
        assert stdin is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()


def _available() -> list[Method]:
    return [method for method in METHODS if method != "libp2p" or importlib.util.find_spec("libp2p") is not None]


def _pair(text: str) -> tuple[Nat, Nat]:
    named = [kind for part in text.split("+") for kind in KINDS if kind == part]
    if len(named) != 2 or "+".join(named) != text:
        raise ConfigError(f"there is no pair {text!r}", fix=f"write two of {', '.join(KINDS)} with a + between")
    return named[0], named[1]
