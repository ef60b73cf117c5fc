"""Join a run with one invite string: write the configuration, and the invite into a file of its own."""

from __future__ import annotations

import re
import socket
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w

from peer.config import PeerConfig
from peer.donor.install.first_limits import FirstLimits
from rollcast.runtime.config import load_config, parse_config, read_toml
from rollcast.runtime.errors import ConfigError, JoinRefused
from rollcast.runtime.process import is_loopback
from rollcast.runtime.run_folder import run_folder_error, write_atomically
from rollcast.wire.joining.invite import Invite

LINK_PORT = 7420  # port for chunk links of a peer that others can dial
_NAME_MAX = 64
_LINE = r"^{}\s*=\s*(\"[^\"\n]*\"|'[^'\n]*')[^\n]*\n?"  # a key with a plain text
_UNLIMITED = FirstLimits()
_SECTION = re.compile(r"^\s*\[", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PeerPaths:
    """The files of one peer on this machine."""

    config_file: Path
    state_folder: Path

    @property
    def invite_file(self) -> Path:
        """Return the path of the invite's file; the invite is a secret that only its owner can read."""
        return self.state_folder / "invite.txt"

    @property
    def log_file(self) -> Path:
        """Return the path of the log of a peer that runs without a journal."""
        return self.state_folder / "logs" / "peer.log"


def peer_paths(config_file: Path, state_folder: Path, *, state_given: bool = False) -> PeerPaths:
    """Return the paths of an existing configuration, or those for a new one.

    Args:
        state_folder: state folder of a new configuration.
        state_given: whether the user named ``state_folder``; an existing configuration must then have the same one.

    Raises:
        ConfigError: the existing configuration is invalid, or its state folder is another one or a relative path.
    """
    if not config_file.exists():
        return PeerPaths(config_file.absolute(), state_folder.absolute())
    configured = load_config(config_file, PeerConfig).state_folder
    if not configured.is_absolute():
        fix = "write state_folder there as an absolute path"
        raise ConfigError(f"{config_file} has a relative state folder, {configured}", fix=fix)
    if state_given and configured != state_folder.absolute():
        raise ConfigError(
            f"{config_file} has the state folder {configured}, not {state_folder}",
            fix="omit --state, or give this peer a configuration of its own with --config",
        )
    return PeerPaths(config_file.absolute(), configured)


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """The address at which a peer listens for links, and the one that it advertises.

    Args:
        host, port: address to listen on; port 0: the system chooses. A machine that cannot be dialled from outside
            listens on all interfaces too, for peers behind the same router (docs/reachability.md).
        advertise: host:port as others see it; empty: the address that is listened on; "none": others cannot dial this
            machine, which dials them.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""


def peer_invite(text: str) -> Invite:
    """Decode the invite of a peer.

    Raises:
        JoinRefused: the text is no invite, or one for another role.
    """
    invite = Invite.decode(text)
    if invite.role != "peer":
        fix = "ask the operator for an invite for a peer"
        raise JoinRefused(f"this invite is for the role {invite.role}, not for a peer", fix=fix)
    return invite


def is_on_this_machine(invite: Invite) -> bool:
    """Return whether the coordinator is reached over loopback; then the other peers are on this machine too."""
    host = invite.grpc_address.rpartition(":")[0].strip("[]")
    return is_loopback(host)


def machine_name() -> str:
    """Return this machine's host name, with the characters that a configuration allows."""
    name = re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())[:_NAME_MAX].lstrip("._-")
    return name or "peer"


def write_configuration(
    places: PeerPaths,
    invite_text: str,
    *,
    name: str | None,
    listening: ListenSettings,
    engine_python: Path | None = None,
    limits: FirstLimits = _UNLIMITED,
) -> PeerConfig:
    """Write configuration and invite, or renew them; the owner's own settings in an existing configuration stay.

    Args:
        engine_python: see peer.config.EngineConfig.python; used for a new configuration only.
        name: name of the peer; None: that of the existing configuration, or the machine's.
        listening, limits: used for a new configuration only.

    Raises:
        ConfigError: the name or the existing configuration is invalid.
        RunFolderError: a file cannot be written.
    """
    path = places.config_file
    if path.exists():
        text = _renewed(path, places, name)
    else:
        text = new_configuration(places, name or machine_name(), listening, engine_python, limits)
    parse_config(tomllib.loads(text), PeerConfig, source=str(path))
    try:
        places.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(places.invite_file, f"{invite_text.strip()}\n".encode("ascii"), mode=0o600)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())  # readable by all: it holds no secret, and a system service reads it
    except OSError as error:
        raise run_folder_error(path.parent, error) from None
    return load_config(path, PeerConfig)


def new_configuration(
    places: PeerPaths,
    name: str,
    listening: ListenSettings,
    engine_python: Path | None = None,
    limits: FirstLimits = _UNLIMITED,
) -> str:
    """Return the text of a donor's configuration, with comments."""
    words = {
        "name": name,
        "state": str(places.state_folder),
        "invite": str(places.invite_file),
        "cache": str(places.state_folder / "cache" / "jax"),
        "host": listening.host,
        "advertise": listening.advertise,
    }
    quoted = {key: _quoted(word) for key, word in words.items()}
    engine = "" if engine_python is None else f"python = {_quoted(str(engine_python))}\n"
    values = {name: value for name, value in asdict(limits).items() if value is not None}
    values.pop("upload_measured_mbit_s", None)
    upload = values.pop("upload_mbit_s_max", None)
    return _TEMPLATE.format(
        **quoted,
        port=listening.port,
        engine=engine,
        upload="" if upload is None else f"upload_mbit_s_max = {upload!r}\n",
        limits="".join(f"{name} = {value!r}\n" for name, value in values.items()),
    )


_TEMPLATE = """\
# A peer on this machine, as `rollcast peer join` wrote it. `rollcast config show --role peer` explains every key.
name = {name}
state_folder = {state}
invite_file = {invite}

[engine]
{engine}compilation_cache = {cache}

[link]                                # chunk links to other peers, always mutual TLS
host = {host}                         # "0.0.0.0": also for machines behind the same router; 127.0.0.1: for none
port = {port}
advertise = {advertise}                         # host:port as others see this machine; "none": it dials those outside
{upload}
[limits]                              # `rollcast peer limits` shows and sets them
{limits}"""


def _renewed(path: Path, places: PeerPaths, name: str | None) -> str:
    """Return the text of an existing configuration with this invite file and, unless None, this name."""
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
    """Return the text as a TOML string."""
    return tomli_w.dumps({"_": text}).removeprefix("_ = ").strip("\n")


def drain_s_of(config_file: Path) -> float:
    """Return a configuration's drain_s; 0 if the file does not exist yet.

    Raises:
        ConfigError: the configuration is invalid.
    """
    return load_config(config_file, PeerConfig).drain_s if config_file.exists() else 0.0
