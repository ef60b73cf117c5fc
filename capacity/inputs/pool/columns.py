"""Define the columns of a pool of workers: their names with units, their meanings, and the values that are accepted.

This one table serves the reader of CSV and TOML, the checks, the documentation, and the import of rentable offers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "number", "whole", "flag"]
Value = str | float | int | bool
Record = dict[str, Value]
"""One row as read: column -> value; empty cells are absent."""


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """The values that one column may hold.

    Args:
        meaning: what the column states, for people.
        needed: whether a row without a value is skipped.
        default: value of a row without one, where it is not needed; None: the value stays unknown.
        low, high: range of a number; values beyond it are absurd. Zero is judged by ``zero_is_fine`` alone.
        zero_is_fine: whether 0 is a real value rather than a sign that the value is missing.
        choices: the only texts that are accepted; empty: any text.
    """

    name: str
    kind: Kind
    meaning: str
    needed: bool = False
    default: Value | None = None
    low: float = 0.0
    high: float = 0.0
    zero_is_fine: bool = False
    choices: tuple[str, ...] = ()


#: Names of columns elsewhere -> ours; only names that leave neither the meaning nor the unit open.
ALIASES: dict[str, str] = {
    "id": "worker_id",
    "price": "usd_per_hour",
    "price_per_hour": "usd_per_hour",
    "gpu": "hardware",
    "gpu_name": "hardware",
    "gpu_count": "gpus",
    "num_gpus": "gpus",
    "vram_gb": "memory_gb",
    "upload_mbps": "upload_mbit_per_second",
    "download_mbps": "download_mbit_per_second",
    "inet_up": "upload_mbit_per_second",
    "inet_down": "download_mbit_per_second",
    "location": "region",
    "geolocation": "region",
}


def _text(name: str, meaning: str) -> ColumnRule:
    return ColumnRule(name, "text", meaning, default="")


RULES: dict[str, ColumnRule] = {
    rule.name: rule
    for rule in (
        ColumnRule("worker_id", "text", "name of the row, unique in the pool", needed=True),
        ColumnRule(
            "count",
            "whole",
            "number of identical machines; they become worker_id-1, worker_id-2 and so on",
            default=1,
            low=1,
            high=100_000,
        ),
        _text("name", "display name"),
        _text("provider", "its owner: a cloud, a marketplace, a lab"),
        _text("region", "machines of one region are lost together; of a cloud as provider:region, e.g. aws:us-east-1"),
        _text("hardware", "accelerator by its name in the catalogue; `rollcast capacity offers hardware` lists them"),
        ColumnRule("memory_gb", "number", "memory of one accelerator; any size is named by it", low=1, high=2000),
        ColumnRule(
            "bandwidth_gb_s",
            "number",
            "memory bandwidth of one accelerator, GB/s; with memory_gb and tflops_bf16 any accelerator can be used",
            low=10,
            high=100_000,
        ),
        ColumnRule("tflops_bf16", "number", "dense bf16 TFLOP/s of one accelerator", low=1, high=100_000),
        ColumnRule("gpus", "whole", "accelerators in the machine", default=1, low=1, high=72),
        ColumnRule(
            "tensor_parallel",
            "whole",
            "accelerators that share one copy of the model; the demand's if empty",
            low=1,
            high=72,
        ),
        ColumnRule(
            "weights",
            "text",
            "precision of the weights that it generates with: bf16, fp8 or int4; the demand's if empty",
            default="",
            choices=("", "bf16", "fp8", "int4"),
        ),
        ColumnRule("usd_per_hour", "number", "price of the machine while it is on", needed=True, low=0.005, high=500),
        ColumnRule("donated", "flag", "whether it costs nothing: only then may usd_per_hour be 0", default=False),
        ColumnRule(
            "upload_mbit_per_second",
            "number",
            "upload rate, within its owner's cap (1 Mbit = 1e6 bits)",
            needed=True,
            low=0.1,
            high=400_000,
        ),
        ColumnRule("download_mbit_per_second", "number", "download rate", needed=True, low=0.1, high=400_000),
        ColumnRule(
            "egress_usd_per_gb",
            "number",
            "price of what it sends (1 GB = 1e9 bytes); 0: free; empty: the list price of its cloud region, if known",
            needed=True,
            low=0.0001,
            high=2.0,
            zero_is_fine=True,
        ),
        ColumnRule(
            "rollouts_per_second",
            "number",
            "measured rollouts per second of all its accelerators together; needs `concurrency`",
            low=1e-6,
            high=10_000,
        ),
        ColumnRule(
            "tokens_per_second",
            "number",
            "the same in generated tokens; needs `concurrency`",
            low=0.1,
            high=1_000_000,
        ),
        ColumnRule("concurrency", "whole", "rollouts in flight when it was measured", low=1, high=100_000),
        ColumnRule("t_gen_p90_s", "number", "measured seconds of one rollout, 90th percentile", low=0.001, high=86_400),
        ColumnRule("relays", "flag", "whether it may pass chunks on", default=True),
        ColumnRule("spot", "flag", "whether it can be preempted; then preemptions_per_hour is needed", default=False),
        ColumnRule(
            "preemptions_per_hour",
            "number",
            "mean number of preemptions per hour; needed where spot = yes",
            default=0.0,
            low=0.0001,
            high=60,
            zero_is_fine=True,
        ),
        ColumnRule(
            "lost_per_preemption_s",
            "number",
            "seconds of work lost each time: unfinished rollouts, and until a replacement works",
            default=300.0,
            low=1,
            high=86_400,
            zero_is_fine=True,
        ),
        ColumnRule("active", "flag", "whether it is on now", default=False),
        ColumnRule(
            "pin", "text", "`on` or `off`: keeps it so, whatever is cheapest", default="", choices=("", "on", "off")
        ),
        ColumnRule(
            "minimum_billing_s",
            "number",
            "seconds that are billed however short it runs",
            default=0.0,
            low=1,
            high=86_400,
            zero_is_fine=True,
        ),
        ColumnRule(
            "billing_granularity_s",
            "number",
            "billed time is a multiple of so many seconds",
            default=1.0,
            low=1,
            high=86_400,
        ),
        ColumnRule(
            "start",
            "text",
            "what starts its workers: local (a process of the coordinator's machine), ssh, sky (SkyPilot) or "
            "kubernetes, which a run uses itself; terraform, by files of `capacity apply --emit`; empty: their owner",
            default="",
            choices=("", "local", "ssh", "sky", "kubernetes", "terraform"),
        ),
        _text("address", "with start = ssh: [USER@]HOST[:PORT], or an alias of ssh's configuration; empty: worker_id"),
        _text("python", "with start = ssh: the interpreter there with Rollcast; empty: the run's configuration has it"),
        _text("advertise", "HOST:PORT at which other peers reach it, and the port on which it listens; empty: none"),
        _text("infra", "with start = sky: SkyPilot's infra, for example gcp/us-central1; empty: the cheapest cloud"),
        _text("instance_type", "the cloud's name for the machine; with start = terraform it is needed"),
        _text("price_source", "source of the price"),
        _text("price_date", "date of the price, YYYY-MM-DD"),
    )
}
