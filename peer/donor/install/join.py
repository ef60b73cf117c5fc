"""Taking part in a run with one string: the configuration, the invite in a file of its own, the place in the run."""

from __future__ import annotations

import re
import socket
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from peer.config import PeerConfig
from rollcast.runtime.config import load_config, parse_config, read_toml
from rollcast.runtime.errors import ConfigError, JoinRefused
from rollcast.runtime.process import is_loopback
from rollcast.runtime.run_folder import run_folder_error, write_atomically
from rollcast.wire.joining.invite import Invite

LINK_PORT = 7420  # where others dial a peer that its router or firewall lets through
_NAME_MAX = 64
_LINE = r"^{}\s*=\s*(\"[^\"\n]*\"|'[^'\n]*')[^\n]*\n?"  # a key with a plain text
_SECTION = re.compile(r"^\s*\[", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PeerPaths:
    """Where one peer of this machine keeps its things."""

    config_file: Path
    state_folder: Path

    @property
    def invite_file(self) -> Path:
        """Holds a secret; only its owner can read it."""
        return self.state_folder / "invite.txt"

    @property
    def log_file(self) -> Path:
        """Of a peer without a journal."""
        return self.state_folder / "logs" / "peer.log"


def peer_paths(config_file: Path, state_folder: Path, *, state_given: bool = False) -> PeerPaths:
    """The places of a configuration that is there, or those of a new one.

    Args:
        state_folder: of a new configuration; where ``state_given``, it must be that of the one that is there too.

    Raises:
        ConfigError: the configuration is wrong, names another state folder, or one that depends on where it is started.
    """
    if not config_file.exists():
        return PeerPaths(config_file.absolute(), state_folder.absolute())
    configured = load_config(config_file, PeerConfig).state_folder
    if not configured.is_absolute():
        fix = "write state_folder there as a path from / on"
        raise ConfigError(f"{config_file} has the state folder {configured}, relative to where it is started", fix=fix)
    if state_given and configured != state_folder.absolute():
        raise ConfigError(
            f"{config_file} has the state folder {configured}, not {state_folder}",
            fix="leave --state away, or give this peer a configuration of its own with --config",
        )
    return PeerPaths(config_file.absolute(), configured)


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Where others dial this machine.

    Args:
        host, port: bound; port 0: the system chooses. All interfaces also where nobody gets through from outside: those
            behind the same router do (docs/reachability.md).
        advertise: as others see it; "none": nobody gets through from outside, this machine dials them.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""


def peer_invite(text: str) -> Invite:
    """The invite of a peer.

    Raises:
        JoinRefused: it is none, or for another role.
    """
    invite = Invite.decode(text)
    if invite.role != "peer":
        fix = "ask the operator for an invite for a peer"
        raise JoinRefused(f"this invite is for the role {invite.role}, not for a spare machine", fix=fix)
    return invite


def is_on_this_machine(invite: Invite) -> bool:
    """Whether the coordinator is reached over loopback: then other peers are here too."""
    host = invite.grpc_address.rpartition(":")[0].strip("[]")
    return is_loopback(host)


def machine_name() -> str:
    """This machine's name as a configuration takes it."""
    name = re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())[:_NAME_MAX].lstrip("._-")
    return name or "peer"


def write_configuration(
    places: PeerPaths, invite_text: str, *, name: str | None, listening: ListenSettings
) -> PeerConfig:
    """Write or renew configuration and invite. What the owner wrote into the configuration stays as it is.

    Args:
        name: None: as it is, or the machine's.
        listening: for a new configuration.

    Raises:
        ConfigError: the name is none, or the configuration that is there is wrong.
        RunFolderError: it cannot be written.
    """
    path = places.config_file
    if path.exists():
        text = _renewed(path, places, name)
    else:
        text = new_configuration(places, name or machine_name(), listening)
    parse_config(tomllib.loads(text), PeerConfig, source=str(path))
    try:
        places.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(places.invite_file, f"{invite_text.strip()}\n".encode("ascii"), mode=0o600)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())  # no secret is in it, and a service of the machine reads it
    except OSError as error:
        raise run_folder_error(path.parent, error) from None
    return load_config(path, PeerConfig)


def new_configuration(places: PeerPaths, name: str, listening: ListenSettings) -> str:
    """A donor's configuration, with what there is to know about each line."""
    words = {
        "name": name,
        "state": str(places.state_folder),
        "invite": str(places.invite_file),
        "cache": str(places.state_folder / "cache" / "jax"),
        "host": listening.host,
        "advertise": listening.advertise,
    }
    return _TEMPLATE.format(**{key: _quoted(word) for key, word in words.items()}, port=listening.port)


_TEMPLATE = """\
# A peer on this machine, as `rollcast peer join` wrote it. `rollcast config show --role peer` explains every key.
name = {name}
state_folder = {state}
invite_file = {invite}

[engine]
compilation_cache = {cache}

[link]                                # chunk links to other peers, always mutual TLS
host = {host}                         # "0.0.0.0": also for machines behind the same router; 127.0.0.1: for none
port = {port}
advertise = {advertise}                         # host:port as others see this machine; "none": it dials those outside

[limits]                              # `rollcast peer limits` shows and sets them
"""


def _renewed(path: Path, places: PeerPaths, name: str | None) -> str:
    """A configuration that is there, with this invite's file and, where it is given, this name."""
    values = read_toml(path)
    changes = {"invite_file": str(places.invite_file)} | ({} if name is None else {"name": name})
    text = path.read_text(encoding="utf-8")
    section = _SECTION.search(text)
    top, rest = (text, "") if section is None else (text[: section.start()], text[section.start() :])
    for key in ("invite", *changes):
        top = re.sub(_LINE.format(key), "", top, flags=re.MULTILINE)
    text = "".join(f"{key} = {_quoted(value)}\n" for key, value in changes.items()) + top + rest
    expected = {**{key: value for key, value in values.items() if key != "invite"}, **changes}
    try:
        is_right = tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise ConfigError(
            f"{path} is written in a way that `rollcast peer join` cannot change",
            fix=f"set invite_file = {_quoted(str(places.invite_file))} there by hand, or move the file away",
        )
    return text


def _quoted(text: str) -> str:
    """As a TOML string."""
    return tomli_w.dumps({"_": text}).removeprefix("_ = ").strip("\n")


def drain_s_of(config_file: Path) -> float:
    """Seconds that a configuration leaves for begun rollouts when the peer is stopped; 0 where there is none yet.

    Raises:
        ConfigError: it is wrong.
    """
    return load_config(config_file, PeerConfig).drain_s if config_file.exists() else 0.0
