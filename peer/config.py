"""Configuration of a peer process: a worker, or with role "origin" the holder of published versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from peer.limits.config import LimitsConfig
from rollcast.runtime.config import ConfigModel
from rollcast.runtime.process import is_loopback
from rollcast.wire.joining.bootstrap import PLACE_PATTERN, PLACES_MOST


class EngineConfig(ConfigModel):
    """Rollout generation."""

    kind: Literal["auto", "jax", "torch"] = "auto"
    """What draws rollouts: jax, torch (through transformers), or jax where it is installed and else torch."""
    concurrent_rollouts: int = Field(64, ge=1)
    """Rollouts generated in one batch."""
    slice_tokens: int = Field(256, ge=1)
    """Tokens of each rollout drawn at once. Between two slices a batch can be stopped, go on with a newer version, and
    say how far it is."""
    slice_s: float = Field(0.5, gt=0.0, le=0.6)
    """Most seconds that a slice should take; it has fewer tokens where they come slowly."""
    cache_tokens: int = Field(0, ge=0)
    """Tokens whose keys and values are kept in memory at once; rollouts that do not fit wait. 0: enough for
    concurrent_rollouts of the run's greatest length. Engine jax."""
    compilation_cache: Path | None = None
    """Folder of jax's persistent compilation cache; none: no cache."""


class LinkConfig(ConfigModel):
    """Chunk links to other peers."""

    host: str = "127.0.0.1"
    """Interface to listen on for chunk links (always mutual TLS)."""
    port: int = Field(0, ge=0, le=65535)
    """Port to listen on; 0 lets the system choose."""
    advertise: str = ""
    """host:port that others dial; empty: the bound address. "none": cannot be dialled."""
    stall_timeout_s: float = Field(3.0, gt=0.0)
    """A version without a new chunk for this long is asked for from a fallback too."""
    congestion: str = Field("", pattern=r"^[a-z0-9_]{0,15}$")
    """TCP congestion control of links, by the kernel's name (cubic, bbr ...); empty: the system's."""
    pacing_mbit_s: float = Field(10_000.0, gt=0.0)
    """Most that one link sends, in Mbit/s. Any value turns on TCP's own pacing, which keeps queues on the way short."""
    upload_mbit_s_max: float | None = Field(None, gt=0.0)
    """Cap on chunks that all links send together, in Mbit/s; none: no cap."""
    download_mbit_s_max: float | None = Field(None, gt=0.0)
    """Cap on what all links receive together, in Mbit/s; none: no cap."""
    lan_exempt: bool = True
    """Links to private, link-local and loopback addresses are not capped."""
    region: str = Field("", max_length=64)
    """Where this machine is, in the operator's own words; peers of one region are preferred as neighbours."""
    punch: bool = True
    """Also links through holes in routers: where neither of two peers can be dialled, both dial at the same moment,
    which the coordinator names. Takes one more connection to it."""
    p2p: bool = False
    """Also links over libp2p (extra p2p). Without it, or when it fails, direct links go on."""
    p2p_port: int = Field(0, ge=0, le=65535)
    """TCP port of libp2p on link.host; 0 lets the system choose."""
    dht: bool = False
    """Look for members of the run in a table that they keep among themselves (Kademlia, over libp2p; needs p2p), also
    while the coordinator is away. It begins with dht_seeds and with those that are known."""
    dht_seeds: tuple[Annotated[str, Field(max_length=512)], ...] = Field((), max_length=8)
    """libp2p addresses to begin with, such as /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW...."""
    relay_for_others: bool = True
    """With link.p2p, and where others can dial this peer: also pass on links between two peers that cannot reach each
    other (docs/p2p.md). Counts in the caps and quotas like everything else."""
    relay_circuits_most: int = Field(8, ge=1, le=256)
    """Links of others passed on at a time."""
    relay_mbit_s_max: float = Field(50.0, gt=0.0)
    """Cap on what is passed on for others, in Mbit/s, all circuits together."""
    relay_circuit_bytes: int = Field(16 << 30, ge=1 << 20)
    """Bytes after which one circuit ends; both ends may open another."""
    relay_circuit_minutes: float = Field(120.0, gt=0.0)
    """Minutes after which one circuit ends; both ends may open another."""
    map_port: bool = False
    """Ask this machine's router, over NAT-PMP or UPnP, to pass link.port on (and p2p_port with p2p), and advertise
    what it says; the mapping is renewed while the process runs, and removed at its end."""
    mdns: bool = False
    """Say on the local network, over multicast DNS, where this peer is, and find others there (extra lan)."""
    metered: bool = False
    """What is sent costs money: this peer receives, and passes on only what nobody else can."""

    @model_validator(mode="after")
    def _what_belongs_together(self) -> LinkConfig:
        if self.map_port and not self.port:
            raise ValueError("map_port needs a port that stays the same: set link.port, for example to 7420")
        if self.dht and not self.p2p:
            raise ValueError("dht needs libp2p: set link.p2p = true")
        if self.map_port and is_loopback(self.host):
            raise ValueError('map_port needs links from outside: set link.host = "0.0.0.0"')
        return self


class StoreConfig(ConfigModel):
    """Versions kept on disk."""

    keep_versions: int = Field(8, ge=2)
    """Newest states kept; older ones are removed once nobody reads them."""
    keep_deltas: int = Field(16, ge=1)
    """Newest versions whose deltas are kept: they serve those who follow step by step."""
    keep_bytes: int = Field(0, ge=0)
    """Bytes that states and deltas may take together, the newest state always; 0: no limit."""
    retry_s: float = Field(15.0, gt=0.0)
    """Seconds until a version that could not be stored is received again; the third failure in a row ends the peer."""


class MirrorConfig(ConfigModel):
    """Further sources of the same signed chunks, and a folder that can be one (docs/mirrors.md)."""

    addresses: tuple[str, ...] = ()
    """Asked beside those of the relay plan: mirrors (https://host/prefix) and public weights (address or path of a
    .safetensors file or of its index)."""
    headers_file: Path | None = None
    """TOML file with request headers by address prefix, for mirrors that ask for credentials."""
    concurrent_requests: int = Field(4, ge=1, le=64)
    """Requests under way to one mirror."""
    request_bytes: int = Field(4 << 20, ge=1 << 16)
    """Longest byte range of one request."""
    folder: Path | None = None
    """Folder for a web server to serve: finished encodings are put there. None: no such folder."""
    keep_versions: int = Field(8, ge=1)
    """Newest versions kept in that folder; enough to hold a keyframe and the deltas that follow it."""


class PeerConfig(ConfigModel):
    """A peer: receives versions, relays them, generates rollouts."""

    role: Literal["peer", "origin"] = "peer"
    """"origin" holds versions for others and generates nothing."""
    name: str = Field("peer", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")
    """Shown to the operator."""
    public_name: str = Field("", max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")
    """What the world may see of who gives this machine's time, on lists of contributors; empty: nothing."""
    invite: SecretStr = SecretStr("")
    """Invite string from the operator."""
    invite_file: Path | None = None
    """File that holds the invite; waited for at start."""
    state_folder: Path = Path("peer-state")
    """Identity, certificate and received versions."""
    engine: EngineConfig = EngineConfig()
    """Rollout generation; ignored by the origin."""
    link: LinkConfig = LinkConfig()
    """Chunk links."""
    store: StoreConfig = StoreConfig()
    """Versions on disk."""
    mirror: MirrorConfig = MirrorConfig()
    """Mirrors."""
    limits: LimitsConfig = LimitsConfig()
    """What this machine may be used for, and when."""
    coordinators: tuple[Annotated[str, Field(pattern=PLACE_PATTERN)], ...] = Field((), max_length=PLACES_MOST - 1)
    """Further places of the run's coordinator, tried in turn with those of the invite: host, with the invite's ports,
    or host:control port:HTTP port."""
    join_timeout_s: float | None = Field(None, gt=0.0)
    """Seconds to reach the coordinator at start before giving up; none: tried for ever."""
    reconnect_timeout_s: float | None = Field(None, gt=0.0)
    """Seconds to keep trying when the coordinator is away; none: for ever. Work under held leases goes on."""
    page: bool = True
    """Whether a peer has a page for its owner, on 127.0.0.1 only: `rollcast peer page` prints its address."""
    drain_s: float = Field(0.0, ge=0.0, le=86_400.0)
    """Seconds that SIGTERM, as of `systemctl stop`, leaves for rollouts that were begun; what is not done then is
    handed back. 0: at once, within 2 s. The service manager must wait longer than this."""
    spool_bytes_max: int = Field(256 << 20, ge=1 << 20)
    """Memory for finished rollouts that wait for the coordinator, in bytes. Once it is full no batch begins."""
