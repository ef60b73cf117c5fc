"""Define routes: the experts of a mixture-of-experts model that an engine chose for the tokens of a rollout.

The route of a generated token is that of the forward pass that predicted it, which read the token before it. So every
generated token has exactly one route, of the version that generated it, and the first one has the route of the prompt's
last token. The segment with which an engine began, usually the first one, also has the routes of its context: of the
tokens of the prompt and of earlier segments but for the last, as the engine read them.

On the wire routes are ids [tokens, layers, experts_per_token], row-major: one byte each for up to 255 experts,
otherwise two, little-endian. The ids of a token in a layer ascend, which proves in one comparison that they are
distinct; the weights of experts do not depend on their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.checks import require

BYTE_EXPERTS_MAX = 255
"""Most experts whose ids take one byte, one number of which is left to mark tokens without a route."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class RouteShape:
    """The shape of one token's route, which follows from the model."""

    layers: int
    experts: int
    experts_per_token: int

    @classmethod
    def described(cls, model_json: str) -> RouteShape | None:
        """Return the shape for the model of a version record; None if that model has no experts.

        Raises:
            MalformedMessage: this is not the description of a model.
        """
        try:
            model = msgspec.json.decode(model_json, type=_Model)
        except msgspec.MsgspecError as error:
            raise MalformedMessage("a version does not describe its model", cause=str(error)) from None
        return cls(model.layers, model.experts, model.experts_per_token) if model.experts else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of one id on the wire."""
        return np.dtype(np.uint8 if self.experts <= BYTE_EXPERTS_MAX else "<u2")

    @property
    def no_route(self) -> int:
        """Return the number that stands in arrays for every expert of a token whose route is not known."""
        return int(np.iinfo(self.dtype).max)

    @property
    def token_bytes(self) -> int:
        """Return the bytes of one token's route."""
        return self.layers * self.experts_per_token * self.dtype.itemsize

    def to_bytes(self, chosen: Array) -> bytes:
        """Return the routes of tokens, integers [tokens, layers, experts_per_token] in any order, as they are sent."""
        return np.sort(chosen, axis=-1).astype(self.dtype).tobytes()

    def from_bytes(self, routes: bytes) -> Array:
        """Return checked routes as a view, `dtype` [tokens, layers, experts_per_token]."""
        return np.frombuffer(routes, self.dtype).reshape(-1, self.layers, self.experts_per_token)

    def check(self, routes: bytes, tokens: int) -> None:
        """Check the received routes of ``tokens`` tokens.

        Raises:
            MalformedMessage: they are not of that many tokens, or name an expert twice or one that does not exist.
        """
        require(len(routes) == tokens * self.token_bytes, "the routes do not fit the tokens")
        ids = self.from_bytes(routes)
        require(bool(np.all(ids[..., :-1] < ids[..., 1:])), "the experts of a route do not ascend")
        require(bool(np.all(ids[..., -1] < self.experts)), "a route names an expert that the model does not have")


class _Model(msgspec.Struct):
    """The part of rollcast.policy.config.ModelConfig that determines routes."""

    layers: int
    experts: int = 0
    experts_per_token: int = 0
