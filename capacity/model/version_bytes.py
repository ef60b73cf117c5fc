"""Estimate the bytes that a worker receives for one version: a keyframe, or a lossless delta from its own version.

A delta names the weights whose published value changed. How many change depends on the optimiser's step: at a small
learning rate most updates are below the spacing of bf16 numbers. The shares below were measured on synthetic weights of
a 4B model and agree with real runs (design notes on the learner, section on deltas); `python -m bench delta` measures
this project's codec.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

Precision = Literal["bf16", "fp8"]

#: Bytes of one step's delta / bytes of the whole version in bf16, by learning rate (Adam): the middle of what was seen.
_SHARES: Mapping[Precision, tuple[tuple[float, float], ...]] = {
    "bf16": ((1e-6, 0.008), (3e-6, 0.0175), (1e-5, 0.040)),
    "fp8": ((1e-6, 0.0013), (3e-6, 0.0029), (1e-5, 0.0065)),
}
#: Eight steps cost 3.3 to 4.2 single deltas: a weight that changed twice counts once. ``8 ** (2/3) = 4``.
_STEPS_EXPONENT = 2 / 3
#: The whole version after zstd in bf16; a delta that would be larger is not sent.
_KEYFRAME_COMPRESSED = 0.78
RELATIVE_UNCERTAINTY = 0.3
"""Uncertainty of a share at measured learning rates; gradients that agree change up to twice as many weights."""


def delta_share(learning_rate: float, steps: int = 1, precision: Precision = "bf16") -> float:
    """Return the bytes of a delta over so many steps, as a share of the bytes of a bf16 keyframe.

    Between and beyond the learning rates measured it follows the power law of the nearest two.

    Args:
        learning_rate: of Adam or AdamW, at its highest.
        steps: learner steps between the two versions: kappa for a worker that misses none.
        precision: fp8 is with power-of-two scales.

    Raises:
        ValueError: the learning rate is not positive, or there is no step.
    """
    if not learning_rate > 0 or steps < 1:
        raise ValueError("learning_rate must be positive, steps at least 1")
    rates, shares = (np.log(column) for column in zip(*_SHARES[precision], strict=True))
    wanted = math.log(learning_rate)
    left = int(np.clip(np.searchsorted(rates, wanted) - 1, 0, len(rates) - 2))
    slope = (shares[left + 1] - shares[left]) / (rates[left + 1] - rates[left])
    one_step = math.exp(min(0.0, shares[left] + slope * (wanted - rates[left])))
    return min(_KEYFRAME_COMPRESSED, one_step * math.pow(steps, _STEPS_EXPONENT))
