"""Configuration of a peer process: a worker, or with role "origin" the holder of published versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from peer.engines.sglang.config import SglangConfig
from peer.limits.config import LimitsConfig
from rollcast.runtime.config import ConfigModel, IpNetworkText
from rollcast.runtime.process import is_loopback
from rollcast.wire.joining.bootstrap import PLACE_PATTERN, PLACES_MOST


class EngineConfig(ConfigModel):
    """Settings of this peer's rollout engine."""

    kind: Literal["auto", "jax", "vllm", "sglang"] = "auto"
    """Engine that generates rollouts: jax, vllm, sglang (a server that the owner runs, see sglang), or auto: vllm if
    engine.python is set, otherwise jax."""
    python: Path | None = None
    """Python interpreter of the environment that has vLLM, which may be kept apart from this program's; none: the
    interpreter that runs this program. Used by the vllm engine only."""
    concurrent_rollouts: int = Field(64, ge=1)
    """Rollouts generated in one batch."""
    slice_tokens: int = Field(256, ge=1)
    """Most tokens generated for each rollout of a batch in one slice. Between two slices the batch can be stopped,
    switched to a newer version, or report its progress."""
    slice_s: float = Field(0.5, gt=0.0, le=0.6)
    """Longest time that a slice should take, in seconds; slow hardware generates fewer than slice_tokens in it."""
    cache_tokens: int = Field(0, ge=0)
    """Size of the key-value cache in tokens; rollouts that do not fit wait. 0: jax makes room for
    concurrent_rollouts of the greatest length in the run, and so does vllm without a GPU; with one it fills its share
    of the device's memory."""
    devices: Literal["all"] | Annotated[int, Field(ge=1)] = "all"
    """GPUs or TPU chips that the model is divided among: the first so many that this process sees, or all; with vllm as
    many of all as divide the query heads evenly. A model that fits one device is generated faster by one peer a
    device."""
    versions_on_device: Literal["auto", "one", "two"] = "auto"
    """Versions whose weights are on the devices at a time. two: the next version is loaded while the active one
    generates. one: it waits in host memory, then replaces the active one tensor by tensor while generation stops. auto:
    two where the devices' memory suffices. Used by the jax engine only."""
    matmul_precision: Literal["highest", "high", "default"] = "highest"
    """Precision of products of float32 matrices, by the jax engine; as in the learner's configuration."""
    compilation_cache: Path | None = None
    """Folder of jax's persistent compilation cache; without one jax's own setting holds (JAX_COMPILATION_CACHE_DIR)."""
    sglang: SglangConfig = SglangConfig()
    """The server of kind sglang."""

    def devices_of(self, found: int) -> int:
        """Return how many of the devices that the process sees a model is divided among; 1 where it sees none."""
        return max(1, found if self.devices == "all" else min(found, self.devices))

    @property
    def chosen_kind(self) -> Literal["jax", "vllm", "sglang"]:
        """Return the engine that is used: what auto stands for, or what is set."""
        if self.kind != "auto":
            return self.kind
        return "jax" if self.python is None else "vllm"

    @property
    def versions_on_device_min(self) -> int:
        """Return how many versions the device must have room for."""
        return 2 if self.versions_on_device == "two" else 1


class LinkConfig(ConfigModel):
    """Chunk links to other peers."""

    host: str = "127.0.0.1"
    """Address to listen on for chunk links (always mutual TLS); "0.0.0.0": every interface, "::": for IPv6 and IPv4."""
    port: int = Field(0, ge=0, le=65535)
    """Port to listen on; 0 lets the system choose."""
    advertise: str = ""
    """Address that other peers dial, as host:port; empty: the bound address, "none": this peer cannot be dialled."""
    dial_networks: list[IpNetworkText] = Field(default_factory=list, max_length=64)
    """Private networks (10.0.0.0/8) in which this peer dials others although its coordinator is in none."""
    stall_timeout_s: float = Field(3.0, gt=0.0)
    """Seconds without a new chunk of a version after which it is requested from a fallback too."""
    congestion: str = Field("auto", pattern=r"^[a-z0-9_]{0,15}$")
    """TCP congestion control of links: auto (the system's default, and bbr on links that lose packets although no queue
    forms), or the kernel's name of one (cubic, bbr ...); empty: the system's default on all links."""
    pacing_mbit_s: float = Field(10_000.0, gt=0.0)
    """Fastest rate at which one link sends, in Mbit/s, paced by TCP; from 10,000 on there is no cap, and links with
    round trips of a millisecond and more are paced, which keeps queues along the path short."""
    upload_mbit_s_max: float | None = Field(None, gt=0.0)
    """Cap on the chunks that all links together send, in Mbit/s; none: no cap."""
    download_mbit_s_max: float | None = Field(None, gt=0.0)
    """Cap on what all links together receive, in Mbit/s; none: no cap."""
    lan_exempt: bool = True
    """Whether links to private, link-local and loopback addresses are exempt from both caps."""
    region: str = Field("", max_length=64)
    """Location of this machine, a label of your own choice; peers with the same label are preferred as neighbours."""
    punch: bool = True
    """Open links through NAT by TCP hole punching: where neither of two peers can be dialled, both dial at a moment
    that the coordinator sets. Takes one more connection to the coordinator."""
    p2p: bool = False
    """Open links over libp2p as well (extra p2p). Where libp2p is missing or fails, direct links keep working."""
    p2p_port: int = Field(0, ge=0, le=65535)
    """TCP port of libp2p on link.host; 0 lets the system choose."""
    dht: bool = False
    """Find members of the run through a distributed hash table (Kademlia over libp2p; needs p2p), which works while the
    coordinator is unreachable too. The search starts from dht_seeds and from the members that are known already."""
    dht_seeds: tuple[Annotated[str, Field(max_length=512)], ...] = Field((), max_length=8)
    """libp2p addresses that the search starts from, such as /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW...."""
    relay_for_others: bool = True
    """Relay links between two peers that cannot reach each other (docs/p2p.md). Needs link.p2p, and an address that
    others can dial; the traffic counts towards this machine's caps and quotas."""
    relay_circuits_most: int = Field(8, ge=1, le=256)
    """Relayed links (circuits) of other peers at a time."""
    relay_mbit_s_max: float = Field(50.0, gt=0.0)
    """Cap on what all circuits together relay for others, in Mbit/s."""
    relay_circuit_bytes: int = Field(16 << 30, ge=1 << 20)
    """Bytes after which a circuit is closed; its two ends may open another."""
    relay_circuit_minutes: float = Field(120.0, gt=0.0)
    """Minutes after which a circuit is closed; its two ends may open another."""
    relay_on_arrival: bool = True
    """Whether an origin sends the chunks of a version on while the learner still pushes them; otherwise once the
    coordinator has announced the version. Peers use a version only once it is announced."""
    map_port: bool = False
    """Ask this machine's router to let others in at link.port (with p2p also p2p_port), and advertise the addresses
    that it returns: to forward the port over NAT-PMP or UPnP, and with host "::" to admit it over IPv6 by PCP.
    Mappings are renewed while the process runs and removed on shutdown."""
    mdns: bool = False
    """Announce this peer on the local network over multicast DNS, and find other peers there (extra lan)."""
    metered: bool = False
    """Sending costs money: this peer receives versions, and relays only what no other peer can."""

    @model_validator(mode="after")
    def _requirements_are_met(self) -> LinkConfig:
        if self.map_port and not self.port:
            raise ValueError("map_port needs a fixed port to forward: set link.port, for example to 7420")
        if self.dht and not self.p2p:
            raise ValueError("dht runs over libp2p: set link.p2p = true")
        if self.map_port and is_loopback(self.host):
            raise ValueError(
                'map_port forwards connections from outside, but links listen on loopback: set link.host = "0.0.0.0"'
            )
        return self


class StoreConfig(ConfigModel):
    """Versions kept on disk and in memory."""

    states_in_memory: bool = True
    """Whether weights that are made from a delta stay in memory, so that only deltas are written to disk at each step,
    and full weights now and then. Weights that take more than half of the available memory are made on disk, and so are
    those for mirror.folder."""
    memory_only: bool = False
    """Whether versions are kept in memory alone: nothing of them is written to disk, and a peer that restarts receives
    the weights again. For peers with memory for two versions; not for an origin or with mirror.folder."""
    keep_versions: int = Field(2, ge=2)
    """Number of newest versions whose full weights are kept; older ones are removed once they are no longer read."""
    keep_deltas: int = Field(16, ge=1)
    """Number of newest versions whose deltas are kept, for peers that update version by version."""
    keep_bytes: int = Field(0, ge=0)
    """Bytes that full weights and deltas may take together; the newest weights are kept in any case. 0: no limit."""
    retry_s: float = Field(15.0, gt=0.0)
    """Seconds until a version that could not be stored is received again."""
    give_up_s: float = Field(3600.0, gt=0.0)
    """Seconds after which the peer ends if no version could be stored, for example because the disk is full."""


class MirrorConfig(ConfigModel):
    """Further sources of the same signed chunks, and a folder that can be one (docs/mirrors.md)."""

    addresses: tuple[str, ...] = ()
    """Sources to request chunks from besides the peers of the relay plan: mirrors (https://host/prefix) and public
    weights (address or path of a .safetensors file or of its index)."""
    headers_file: Path | None = None
    """TOML file with request headers by address prefix, for mirrors that require credentials."""
    concurrent_requests: int = Field(4, ge=1, le=64)
    """Requests in flight to one mirror."""
    request_bytes: int = Field(4 << 20, ge=1 << 16)
    """Longest byte range of one request, in bytes."""
    folder: Path | None = None
    """Folder into which finished encodings are written, for a web server to serve as a mirror; none: no such folder."""
    keep_versions: int = Field(8, ge=1)
    """Number of newest versions kept in that folder; it should span a keyframe and the deltas that follow it."""


class PeerConfig(ConfigModel):
    """A peer: receives versions, relays them, generates rollouts."""

    role: Literal["peer", "origin"] = "peer"
    """Role of this process: a peer generates rollouts, "origin" holds versions for others and generates nothing."""
    name: str = Field("peer", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")
    """Name under which the operator sees this peer."""
    public_name: str = Field("", max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")
    """Name under which public lists of contributors show this machine's owner; empty: not listed."""
    invite: SecretStr = SecretStr("")
    """Invite string from the operator."""
    invite_file: Path | None = None
    """File that holds the invite; if it does not exist at startup, the peer waits for it."""
    state_folder: Path = Path("peer-state")
    """Folder for the identity, the certificate and received versions."""
    engine: EngineConfig = EngineConfig()
    """Rollout generation; ignored by the origin."""
    link: LinkConfig = LinkConfig()
    """Chunk links."""
    store: StoreConfig = StoreConfig()
    """Versions on disk."""
    mirror: MirrorConfig = MirrorConfig()
    """Mirrors."""
    limits: LimitsConfig = LimitsConfig()
    """The owner's limits on the use of this machine."""
    coordinators: tuple[Annotated[str, Field(pattern=PLACE_PATTERN)], ...] = Field((), max_length=PLACES_MOST - 1)
    """Further addresses of the run's coordinator, tried in turn with those of the invite: host, with the invite's
    ports, or host:control port:HTTP port."""
    join_timeout_s: float | None = Field(None, gt=0.0)
    """Seconds to reach the coordinator at startup before giving up; none: retry without end."""
    reconnect_timeout_s: float | None = Field(None, gt=0.0)
    """Seconds to retry when the connection to the coordinator is lost; none: retry without end. Work under leases that
    are held continues meanwhile."""
    page: bool = True
    """Whether the peer serves a page for its owner, on 127.0.0.1 only; `rollcast peer page` prints its address."""
    drain_s: float = Field(0.0, ge=0.0, le=86_400.0)
    """Seconds that started rollouts get to finish after SIGTERM (`systemctl stop`); unfinished leases are returned. 0:
    stop within 2 s. The service manager's own stop timeout must be longer."""
    spool_bytes_max: int = Field(256 << 20, ge=1 << 20)
    """Memory for finished rollouts that wait for the coordinator, in bytes. While it is full no batch starts."""

    @model_validator(mode="after")
    def _memory_only_is_for_peers(self) -> PeerConfig:
        if self.store.memory_only and (self.role == "origin" or self.mirror.folder is not None):
            raise ValueError(
                "store.memory_only is for peers: an origin, or a mirror's folder, must outlive its process"
            )
        return self

    @property
    def states_in_memory(self) -> bool:
        """Return whether states made from deltas stay in memory: no web server reads their files."""
        return (self.store.states_in_memory or self.store.memory_only) and self.mirror.folder is None
