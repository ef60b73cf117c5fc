"""Configure the gateways that a coordinator accepts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from rollcast.runtime.config import ConfigModel
from rollcast.wire.joining.gateways import ADDRESS_PATTERN, GATEWAYS_NAMED_MAX

LINK_ADDRESS = r"^(?:[^\s:]*/[^\s]*|(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5})$"
"""The path of a Unix socket, which has a slash, or HOST:PORT."""
LinkAddress = Annotated[str, Field(pattern=LINK_ADDRESS)]


class GatewaysConfig(ConfigModel):
    """Gateways: processes that serve peers in this coordinator's place (docs/scale.md)."""

    listen: LinkAddress | None = None
    """Where gateways connect: the path of a Unix socket, with a slash, for gateways of this host; or HOST:PORT, over
    mutual TLS. None: there are no gateways."""
    addresses: list[Annotated[str, Field(pattern=ADDRESS_PATTERN)]] = Field([], max_length=GATEWAYS_NAMED_MAX)
    """Where peers dial the gateways: HOST:PORT of each, or of a TCP balancer. Peers learn them when they join. Each
    begins with another one, tries them in turn, and the control port last."""

    @model_validator(mode="after")
    def _addresses_need_gateways(self) -> GatewaysConfig:
        if self.addresses and self.listen is None:
            raise ValueError("addresses name gateways, but without listen none can connect: set listen")
        return self
