"""Open virtual links to mirrors and to public weights."""

from __future__ import annotations

import ssl
from pathlib import Path

from blake3 import blake3

from peer.config import MirrorConfig
from peer.links.neighbours import DISK_ROLE, MIRROR_ROLE, Neighbour
from peer.links.traffic import LinkTraffic, TrafficClass
from peer.mirrors.headers import MirrorHeaders
from peer.mirrors.http_ranges import HttpLimits, HttpRanges, shown, url_of
from peer.mirrors.mirror import MirrorSource
from peer.mirrors.public_weights import LocalFiles, PublicWeights, is_public_weights
from peer.mirrors.virtual_link import ChunkSource, VersionOf, VirtualLink, VirtualLinkLimits
from rollcast.runtime.errors import Unreachable
from rollcast.wire.ids import PeerId


class MirrorTransport:
    """The dialling half of peer.links.transport.ChunkTransport: mirrors do not dial. Make it inside a running event
    loop.

    Args:
        versions: returns the announcements that this process has verified.
        traffic: the traffic of all links of the process.
        http_limits: deadlines of requests.
        tls: the trusted certificate authorities; None: the system's.

    Raises:
        ConfigError: the headers file cannot be read.
    """

    def __init__(
        self,
        config: MirrorConfig,
        versions: VersionOf,
        traffic: LinkTraffic,
        *,
        http_limits: HttpLimits | None = None,
        link_limits: VirtualLinkLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._config = config
        self._versions = versions
        self._traffic = traffic
        self._limits = link_limits or VirtualLinkLimits(
            reads_most=config.concurrent_requests, range_bytes_most=config.request_bytes
        )
        self._http = HttpRanges(
            MirrorHeaders.read(config.headers_file) if config.headers_file else MirrorHeaders(),
            http_limits or HttpLimits(),
            connections_per_host=config.concurrent_requests + 1,  # one more: chunk lists do not wait for long ranges
            tls=tls,
            receive_bytes=lambda address: traffic.of(address).kernel_ahead_bytes,
        )
        self._links: set[VirtualLink] = set()

    async def dial(self, peer_id: PeerId, address: str) -> VirtualLink:
        """Open a link to a mirror once its server has answered.

        Raises:
            Unreachable: no server answers there, or the address is not a mirror's.
            WaitTimedOut: the server took too long.
        """
        source, traffic = await self._source(address)
        link = VirtualLink(
            peer_id, _role_of(address), source, traffic, self._versions, self._limits, self._links.discard
        )
        self._links.add(link)
        return link

    def is_own(self, address: str) -> bool:
        """Return whether this process's own configuration names a mirror or public weights at this address."""
        return address in {neighbour.address for neighbour in own_mirrors(self._config)}

    async def close(self) -> None:
        """Close every link."""
        for link in list(self._links):
            link.close("the process that closed it shuts down")
        await self._http.close()

    async def _source(self, address: str) -> tuple[ChunkSource, TrafficClass]:
        if "://" not in address:
            return self._local(address), TrafficClass(None, None)  # reads from the disk are not capped
        await self._http.reach(address)
        # A name may resolve to any network: only an IP address may count as local.
        traffic = self._traffic.of(url_of(address).host or "")
        if is_public_weights(address):
            return PublicWeights(self._http, address), traffic
        return MirrorSource(self._http, address), traffic

    def _local(self, address: str) -> ChunkSource:
        # A path may only come from this process's own configuration, never from a relay plan, which comes from the
        # network.
        if not self.is_own(address) or not is_public_weights(address):
            raise Unreachable(f"{shown(address)} is neither a mirror nor public weights of this peer")
        return PublicWeights(LocalFiles(), address)


def own_mirrors(config: MirrorConfig) -> tuple[Neighbour, ...]:
    """Return the mirrors of this peer's configuration, which are asked like fallbacks of the relay plan."""
    addresses = [one if "://" in one else str(Path(one).absolute()) for one in config.addresses]
    return tuple(Neighbour(mirror_peer_id(one), _role_of(one), one, we_dial=True) for one in addresses)


def _role_of(address: str) -> str:
    return MIRROR_ROLE if "://" in address else DISK_ROLE


def mirror_peer_id(address: str) -> PeerId:
    """Return an id for a mirror, which has no key: the same on every peer that configures the same address."""
    return PeerId(f"mirror-{blake3(address.encode()).hexdigest(8)}")
