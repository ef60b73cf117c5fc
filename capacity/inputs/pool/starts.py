"""Check how the workers of a pool's row are started: the names, addresses and counts that their provider can use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from capacity.catalogue.gpus import gpu_named
from capacity.inputs.pool.rows import PoolRow
from capacity.model.workers import PATH, WORKER_ID

_USER = r"(?:(?P<user>[a-z_][a-z0-9_-]{0,31})@)?"
_PORT = r"(?::(?P<port>[1-9][0-9]{0,4}))?"
_NAME_OR_V4 = re.compile(rf"{_USER}(?P<host>[A-Za-z0-9][A-Za-z0-9._-]{{0,253}}){_PORT}")
_V6 = re.compile(rf"{_USER}\[(?P<host>[A-Fa-f0-9:.]+(?:%[A-Za-z0-9._-]+)?)\]{_PORT}")
_INFRA = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/*-]{0,127}")
_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_AWS_PLACE = re.compile(r"aws:[a-z]{2}(?:-[a-z]+){1,2}-[0-9][a-z]?")

#: Our name of a GPU -> SkyPilot's, where its clouds agree on one (SkyPilot 0.14, `sky show-gpus -a`). Elsewhere
#: a row gives the cloud's own name in ``instance_type``.
SKY_ACCELERATORS = {
    "l4": "L4",
    "a10": "A10",
    "a10g": "A10G",
    "a100-sxm-40gb": "A100",
    "a100-sxm": "A100-80GB",
    "a100-pcie": "A100-80GB",
    "l40s": "L40S",
    "h100-sxm": "H100",
    "h200-sxm": "H200",
    "b200-sxm": "B200",
    "rtx-4090": "RTX4090",
    "rtx-5090": "RTX5090",
}


@dataclass(frozen=True, slots=True)
class Address:
    """An address that ssh dials; ``user`` empty and ``port`` 0: ssh's own choice."""

    host: str
    user: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``[USER@]HOST[:PORT]``; an IPv6 address stands in brackets.

        Raises:
            ValueError: the text is none of that. An address never begins with ``-``, so it cannot become an option.
        """
        found = _NAME_OR_V4.fullmatch(text) or _V6.fullmatch(text)
        port = int(found["port"] or 0) if found is not None else 0
        if found is None or port > 65_535:
            raise ValueError(f"{text!r} is not [USER@]HOST[:PORT]")
        return cls(found["host"], found["user"] or "", port)


@dataclass(frozen=True, slots=True)
class StartProblem:
    """A column that makes it impossible to start a row's workers, and the values that it may hold."""

    column: str
    value: str
    detail: str


def start_problem(row: PoolRow) -> StartProblem | None:
    """Return why nothing could start this row's workers; None if it can be, or if their owner starts them."""
    if not row.start:
        return None
    if not WORKER_ID.fullmatch(row.worker_ids[-1]):
        return StartProblem(
            "worker_id", row.worker_id, "up to 32 lower-case letters, digits and hyphens with its number"
        )
    if row.advertise and not _is_address(row.advertise, with_port=True):
        return StartProblem("advertise", row.advertise, "HOST:PORT")
    match row.start:
        case "ssh":
            return _ssh_problem(row)
        case "sky":
            return _sky_problem(row)
        case "terraform":
            return _terraform_problem(row)
        case _:
            return None


def sky_accelerators(row: PoolRow) -> str | None:
    """Return SkyPilot's ``accelerators`` for a row's hardware, for example ``L4:1``; None if the name is not known."""
    known = gpu_named(row.hardware, row.memory_gb)
    name = SKY_ACCELERATORS.get(known.name) if known is not None else None
    return None if name is None else f"{name}:{row.gpus}"


def _ssh_problem(row: PoolRow) -> StartProblem | None:
    if row.count > 1:
        return StartProblem("count", str(row.count), "with start = ssh each machine has a row of its own")
    if row.address and not _is_address(row.address):
        return StartProblem("address", row.address, "[USER@]HOST[:PORT]")
    if row.python and not PATH.fullmatch(row.python):
        return StartProblem("python", row.python, "a program's name or path of letters, digits and _./~+-")
    return None


def _sky_problem(row: PoolRow) -> StartProblem | None:
    if row.infra and not _INFRA.fullmatch(row.infra):
        return StartProblem("infra", row.infra, "CLOUD, CLOUD/REGION or CLOUD/REGION/ZONE")
    cloud, *place = row.infra.lower().split("/")
    if cloud == "slurm" and row.spot:
        return StartProblem("spot", "yes", "no: SkyPilot has no spot machines on Slurm")
    if cloud == "vast" and len(place) > 1:
        return StartProblem("infra", row.infra, "vast or vast/REGION: SkyPilot knows no zones of Vast")
    if row.instance_type and not row.infra:
        return StartProblem("infra", "", "instance_type is a name of one cloud: name it here, for example vast")
    if row.instance_type and not _INSTANCE.fullmatch(row.instance_type):
        return StartProblem("instance_type", row.instance_type, "the cloud's name for a machine")
    if not row.instance_type and sky_accelerators(row) is None:
        return StartProblem("instance_type", "", f"SkyPilot's name for {row.hardware or 'this hardware'} is not known")
    return None


def _terraform_problem(row: PoolRow) -> StartProblem | None:
    if not _AWS_PLACE.fullmatch(row.region):
        return StartProblem("region", row.region, "a region or zone of AWS, for example aws:us-east-1")
    if not _INSTANCE.fullmatch(row.instance_type):
        return StartProblem(
            "instance_type", row.instance_type, "the cloud's name for the machine, for example g6.xlarge"
        )
    return None


def _is_address(text: str, *, with_port: bool = False) -> bool:
    try:
        found = Address.parse(text)
    except ValueError:
        return False
    return not with_port or bool(found.port and not found.user)
