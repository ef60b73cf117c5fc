"""``python -m bench NAME [options] [--json]``: run one benchmark and print its figures.

With --json, stdout holds one object {"bench", "settings", "machine", "figures": {key: number}} and nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys

from bench.machine import describe_machine
from rollcast.runtime.errors import RollcastError

#: Folder -> name -> what it shows. bench.FOLDER.NAME has add_arguments(parser) and run(arguments) -> Outcome.
BENCHES = {
    "learner": {
        "demo": "the main job: reward before and after, staleness, share of bytes from peers, accounting of rollouts",
        "pacing": (
            "rollouts dropped and learner utilisation with half as many workers again as needed; goodput under kills"
        ),
        "staleness": "the demonstration task trained with rollouts exactly S steps old, by several algorithms",
        "parity": "logits against Hugging Face transformers: three families, cache included, tied and untied",
        "precision": "log-probabilities of learner and rollout apart, by precision; whether naive fp8 harms training",
        "sampler": "tokens a second against transformers generate at batch 1 to 256, and the share of the roofline",
        "learner": "the learner's step against the matmul roofline, memory while publishing, loss on several devices",
        "roofline": "milliseconds per token from one timed decode, against engines measured and modelled by others",
    },
    "durability": {
        "churn": "the main job with a peer killed half way and one joining late, beside a clean run",
        "chaos": "the main job with every process killed, stopped or suspended on the way, beside a clean run",
        "resume": "the learner killed at every labelled point and restarted: is its trajectory the same to the bit",
        "load": "the coordinator under thousands of peers: acknowledgement times, processor, memory, and what is lost",
        "crash": "the coordinator killed by SIGKILL under load: what was acknowledged, and how soon it works again",
        "powerloss": "power losses of a forgetful disk under the ledger: is everything there that was acknowledged",
        "mutants": "bugs planted into the real code, and how many of them the simulator finds within so many seeds",
        "away": "the coordinator killed for five minutes while versions are published: who holds them, and how soon",
    },
    "broadcast": {
        "delta": "lossless deltas between versions: bytes, speed and memory on synthetic updates",
        "plan": "relay plans for many peers: seconds, and the fluid bound / what the plan sustains",
        "golden": "8 GB from Virginia to nine AWS regions: direct, and over the tree of widest paths",
        "shapes": "what stripes, a tree, a chain and a star cost over the fluid bound of a broadcast",
        "transports": "one chunk link on raw sockets, direct and over libp2p: MB/s, and per second of processor time",
        "broadcast": (
            "time until the last peer holds a verified copy / physical limit, in an emulated wide-area network"
        ),
    },
    "planner": {
        "simspeed": "the simulator: virtual seconds per CPU second, every invariant judged",
        "prediction": "utilisation, T_bcast and staleness predicted against simulated, or against a run with --local",
        "capacity": "plans for 10,000 workers: seconds, gap to the bound, and what simpler rules cost",
        "capacity_cli": "rollcast capacity plan on the shipped pool, from the start of the process to its table",
        "activation": (
            "half of the workers killed, then the rest doubled in price: how soon the set settles, utilisation"
        ),
        "replan": "worker starts an hour and utilisation on recorded and drawn availability, with memory and without",
    },
    "people": {
        "startup": "milliseconds until `rollcast peer status` and `rollcast --help` have answered",
        "dashboard": (
            "the dashboard of 1,000 workers: first paint, an update's main-thread time, server cost of 20 viewers"
        ),
        "caps": "how far measured rates are from a peer's caps, and how quiet it is a second after a pause",
        "newcomer": (
            "from a clean environment to the first accepted rollout: install, check, join; commands and seconds"
        ),
    },
    "reach": {
        "holes": "homes behind routers that dial each other at the same time: the share that gets through, TCP and UDP",
        "relayed": "a link between two homes through a third peer: seconds until it is open, what comes through",
    },
    "longrun": {
        "hour": (
            "an hour of churn with 16 peers, half of them behind routers: what grows, and who goes without versions"
        ),
    },
    "structure": {
        "house": ("how easily code is found and followed: folders, circles of imports, file borders on an event's way"),
    },
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True)
    modules = {}
    for folder, benches in BENCHES.items():
        for name, text in benches.items():
            modules[name] = importlib.import_module(f"bench.{folder}.{name}")
            command = commands.add_parser(name, help=text, description=text)
            command.add_argument("--json", action="store_true", help="one JSON object on stdout")
            modules[name].add_arguments(command)
    parsed = parser.parse_args(arguments)
    try:
        outcome = modules[parsed.name].run(parsed)
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
        print(json.dumps(document, indent=2))
    else:
        width = max(map(len, outcome.figures))
        for key, value in outcome.figures.items():
            print(f"{key:<{width}}  {value:g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
