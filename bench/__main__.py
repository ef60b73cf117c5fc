"""Run one benchmark and print its figures: ``python -m bench NAME [options] [--json]``.

With --json, stdout holds only one object {"bench", "settings", "machine", "figures": {key: number}}.
If a part of the benchmark fails, its figures are null, "failed": {part: error} is added, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from contextlib import redirect_stdout
from typing import Any

from bench.machine import describe_machine
from rollcast.runtime.errors import RollcastError

#: Folder -> name -> help text. bench.FOLDER.NAME has add_arguments(parser) and run(arguments) -> Outcome.
BENCHES = {
    "learner": {
        "demo": "Run the main job; report reward before and after, staleness, bytes from peers, and rollout accounts.",
        "pacing": (
            "Measure dropped rollouts and utilisation with 1.5 times the needed workers, and goodput under kills."
        ),
        "staleness": "Train the demonstration task with rollouts exactly S steps old, by several algorithms.",
        "parity": "Compare logits with Hugging Face transformers: three families, with cache, tied and untied.",
        "precision": "Compare log-probabilities of learner and rollout by precision; train with naive fp8.",
        "sampler": "Compare tokens per second with transformers' generate at batch 1 to 256, and with the roofline.",
        "attention": "Compile attention at 512 to 32,768 tokens for H100s and TPU slices; memory per token.",
        "fits": "Compile the whole step of 4B to 32B models for H100s and TPU slices; compare with plan-memory.",
        "learner": "Compare the learner's step with the matmul roofline; measure memory and multi-device loss.",
    },
    "engines": {
        "engines": "Compare the jax engine, vLLM and transformers: tokens/s, equal tokens, and whole runs on each.",
        "swap": "Exchange versions of a 0.5B model in vLLM: pauses, bytes moved, memory beyond one copy.",
        "jax_swap": "Count the bytes on the jax engine's devices while one version takes the place of another.",
    },
    "hub": {
        "published": (
            "Take a small model from a folder as on the Hugging Face Hub through RL to an export; report reward before "
            "and after, and whether transformers answers from the export as the peers do."
        ),
    },
    "durability": {
        "churn": "Run the main job with a peer killed half way and one joining late; compare with a clean run.",
        "busy": "Run the main job beside processes that spin; report reward, seconds and restarts of processes.",
        "chaos": "Run the main job while every process is killed, stopped or suspended; compare with a clean run.",
        "resume": "Kill the learner at every labelled point and restart it; check that training stays bit-identical.",
        "load": "Load the coordinator with thousands of peers; report ack times, CPU, memory and losses.",
        "crash": "Kill the coordinator under load; report lost acknowledged rollouts and the time to recover.",
        "failover": "Kill the leading one of two coordinators under load; report losses and the time to take over.",
        "gateways": "Kill the coordinator and its gateways under load; report lost rollouts and sessions reopened.",
        "cells": "Run the main job with its workers in cells, one of them killed; compare with one coordinator.",
        "turns": "Kill the coordinator during episodes of several turns; report lost acknowledged turns.",
        "powerloss": "Cut the power of a disk under the ledger; check that every acknowledged change survives.",
        "mutants": "Plant bugs into the real code; report how many the simulator finds, and within how many seeds.",
        "away": "Kill the coordinator for five minutes while versions are published; report when peers hold them.",
    },
    "broadcast": {
        "delta": "Measure lossless deltas between versions: bytes, speed and memory on synthetic updates.",
        "plan": "Compute relay plans for many peers; report the seconds, and fluid bound / sustained rate.",
        "golden": "Compute 8 GB from Virginia to nine AWS regions: over direct links, and over widest paths.",
        "shapes": "Compare stripes, a tree, a chain and a star with the fluid bound of a broadcast.",
        "transports": "Compare one chunk link on raw sockets, direct and over libp2p: MB/s, and MB per CPU second.",
        "loopback": "Measure processor time per GB, and MB/s, from origin to peer on loopback; beside nginx, aria2 ...",
        "sizes": "Publish versions of a given size through real processes: memory of each role, stage timings.",
        "broadcast": (
            "Measure the time until the last peer holds a verified copy / physical limit, in an emulated network."
        ),
    },
    "planner": {
        "bill": ("Compare bills of Qwen3-4B and 8B with generating on the learner's GPUs; simulate the promised runs."),
        "capacity": "Plan for 10,000 workers; report the seconds, the gap to the bound, and the cost of simpler rules.",
        "certificate": "Check bounds and infeasibilities of 600 random pools against exhaustive searches.",
        "capacity_cli": "Time `rollcast capacity plan` on the shipped pool, from process start to its table.",
    },
    "prediction": {
        "prediction": "Compare predicted utilisation, T_bcast and staleness with a simulation or a run (--local).",
        "promise": "Simulate the runs of the shipped plan and of random pools; compare with what the plans promise.",
        "simspeed": "Measure the simulator's virtual seconds per CPU second, with every invariant checked.",
        "throughput": "Compare estimated milliseconds per token with measurements held out of every fit.",
    },
    "replan": {
        "activation": (
            "Kill half of the workers, then double the price of the rest; report utilisation and time to settle."
        ),
        "replan": "Replan on recorded and sampled spot markets, beside simple rules; report $ per useful hour.",
    },
    "people": {
        "startup": "Measure the milliseconds until `rollcast peer status` and other commands have answered.",
        "dashboard": (
            "Measure the dashboard of 1,000 workers: first paint, main-thread time per update, cost of 20 viewers."
        ),
        "views": "Measure how long the views of 10,000 members hold the coordinator's event loop.",
        "caps": "Measure how far a peer's rates are from its caps, and its traffic a second after a pause.",
        "newcomer": ("Go from a clean environment to the first accepted rollout; count the commands and the seconds."),
    },
    "reach": {
        "holes": "Punch holes between homes behind routers; report the share that succeeds, over TCP and UDP.",
        "relayed": "Link two homes through a third peer; report the seconds until the link is open, and its rate.",
    },
    "longrun": {
        "hour": ("Run an hour of churn with 16 peers, half of them behind routers; report growth and missed versions."),
    },
    "adversary": {
        "flood": "Flood a coordinator with 200 hostile connections; report what honest members and its memory notice.",
        "adversary": "Try 20 kinds of attackers, and hostile peers in a real run; report what each achieves.",
    },
    "tasks": {
        "environments": "Train on the shipped environments: reward before and after, and tokens tokenised twice.",
        "scoring": "Score completions by verifier processes, and on Ray, relative to calling the check in a loop.",
    },
    "structure": {
        "house": "Measure how easily code is found: modules per folder, import circles, files on an event's way.",
    },
}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    # Images of containers often forbid bytecode; then each program that a benchmark starts would compile its sources.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    wanted = next((one for one in arguments if not one.startswith("-")), None)
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True)
    module: Any = None
    for folder, benches in BENCHES.items():
        for name, text in benches.items():
            command = commands.add_parser(name, help=text, description=text)
            if name == wanted:  # others may need packages that are not installed, and imports take seconds
                module = importlib.import_module(f"bench.{folder}.{name}")
                command.add_argument("--json", action="store_true", help="print one JSON object on stdout")
                module.add_arguments(command)
    parsed = parser.parse_args(arguments)
    try:
        # An engine within this process logs to stdout, which is for the figures.
        with redirect_stdout(sys.stderr):
            outcome = module.run(parsed)
    except RollcastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if parsed.json:
        document = {
            "bench": parsed.name,
            "settings": outcome.settings,
            "machine": describe_machine(),
            "figures": outcome.figures | dict.fromkeys(outcome.missing),
        }
        if outcome.failed:
            document["failed"] = dict(outcome.failed)
        print(json.dumps(document, indent=2))
    else:
        width = max(map(len, outcome.figures), default=0)
        for key, value in outcome.figures.items():
            print(f"{key:<{width}}  {value:g}")
    for part, reason in outcome.failed.items():
        print(f"the part {part} failed: {reason}", file=sys.stderr)
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
