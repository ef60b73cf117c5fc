"""Define the record of routes: which experts each layer used for each token.

A record is an array of integers [rows, time, layers, experts_per_token], each a number of an expert, most probable
first. It is uint8 for layers of up to 255 experts and uint16 for larger ones; `no_route` of that dtype marks tokens
whose experts are unknown.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollcast.policy.config import ModelConfig


def route_dtype(config: ModelConfig) -> np.dtype[Any]:
    """Return the dtype of a record of routes."""
    return np.dtype(np.uint8 if config.experts <= np.iinfo(np.uint8).max else np.uint16)


def no_route(config: ModelConfig) -> int:
    """Return the number that stands in a record for a token whose experts are unknown: 255 or 65535."""
    return int(np.iinfo(route_dtype(config)).max)


def route_bytes_per_token(config: ModelConfig) -> int:
    """Return the bytes of one token's record over all layers; 0 for a dense model."""
    return config.layers * config.experts_per_token * route_dtype(config).itemsize
