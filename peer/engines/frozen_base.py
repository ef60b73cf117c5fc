"""Keep the frozen weights of a run that trains adapters: on the devices once, and shared by all versions."""

from __future__ import annotations

from collections.abc import Callable

from peer.engines.base import VersionState
from peer.engines.device_weights import DeviceWeights, read_back
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.policy.snapshot import tensor_specs, views
from rollcast.runtime.errors import CorruptChunk, MalformedMessage


class FrozenBase:
    """The frozen weights of which loaded versions have adapters.

    Args:
        place: copies tensors to the devices, and returns them.
    """

    def __init__(self, place: Callable[[ModelConfig, Params], DeviceWeights]) -> None:
        self._place = place
        self._weights: DeviceWeights | None = None
        self._signed_hash = b""
        self._read_hash = b""

    def load(self, version: VersionState, config: ModelConfig) -> DeviceWeights:
        """Return a version's base on the devices. It is loaded unless it is there already; another one is freed first.

        The first version of such a run is the base itself.

        Raises:
            MalformedMessage: the tensors are not those of the model without adapters.
            CorruptChunk: the base on the devices is not the one that the version's record names.
        """
        whole = version.base or version
        if whole.record.tensors != tensor_specs(config):
            raise MalformedMessage(f"version {version.record.version} has adapters and no base of its model")
        weights = self._weights
        if weights is None or not self._read_hash == self._signed_hash == whole.record.state_hash:
            weights = self._weights = None
            # A copy: the store may drop its file while the arrays still share the memory they came from.
            weights = self._place(config, views(config, whole.record.tensors, bytes(whole.state)))
            self._read_hash = read_back(weights.tensors)
            self._weights, self._signed_hash = weights, whole.record.state_hash
        if version.base is not None and self._read_hash != self._signed_hash:
            raise CorruptChunk(
                f"the base of version {version.record.version} as loaded does not match its signed state hash",
                cause="memory or the device changed it",
                fix="check this machine's memory; the peer does not generate with weights that it cannot vouch for",
            )
        return weights

    @property
    def read_hash(self) -> bytes:
        """Return the BLAKE3 hash of the base that was loaded last, as read back from the devices."""
        return self._read_hash
