"""Learn which share of the prompt groups teaches something, so that enough of them are in flight."""

from __future__ import annotations

_WEIGHT = 0.05  # of the newest group in the moving share
_SHARE_LEAST = 0.2  # of useful groups that is reckoned with: bounds how much more work is begun


class Usefulness:
    """Counts of online selection. A coordinator that starts again counts anew."""

    def __init__(self) -> None:
        self.dropped = 0  # groups without advantage since the last batch
        self.share = 1.0  # of useful groups, lately
        self.groups_per_useful_one = 1.0
        """How many groups must be made for each that is trained on."""

    def seen(self, *, useful: bool) -> None:
        """A group was scored."""
        self.share += _WEIGHT * (float(useful) - self.share)
        self.groups_per_useful_one = 1.0 / max(_SHARE_LEAST, self.share)

    def batch_recorded(self) -> None:
        """The next batch has its own bound."""
        self.dropped = 0
