"""Choose which rollouts the learner judges although it does not train on them. Pure.

A peer must not know which of its rollouts are looked at. The learner judges every token that it trains on, but not the
groups that are dropped, nor evaluations: a peer that answers those carelessly would spoil online selection and scores.
So some of them go to the learner beside the next batches and through the same pass, without entering the loss. No role
of its own does this, because only the learner has the versions and the compiled pass, and it judges alike by itself.

A newcomer's are all chosen; later an identity's share falls with each good rollout in a row, to SHARE_LEAST. The choice
is a hash of the run's secret and the rollout, which no peer can predict.
"""

from __future__ import annotations

from collections import OrderedDict

from blake3 import blake3

from coordinator.core.events.audit_events import Unseen
from rollcast.wire.ids import PeerId, RolloutId, Version

SHARE_LEAST = 0.05
WAITING_MAX = 256  # rollouts; beyond, the ones that wait for longest are discarded
BATCH_SHARE = 0.25  # of a batch's rollouts, judged beside it at most
_LEAST = 4  # rollouts beside any batch


class AuditQueue:
    """The rollouts that wait to be judged. ``secret``: a number that peers do not know."""

    def __init__(self, secret: int) -> None:
        self._secret = secret.to_bytes(16, "little", signed=True)
        self._waiting: OrderedDict[RolloutId, Unseen] = OrderedDict()
        self.newest: tuple[Unseen, ...] = ()
        """The rollouts beside the newest batch. They are served with it again if the learner did not receive it."""

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, unseen: Unseen, share: float) -> None:
        """Choose a rollout with the probability ``share``."""
        number = blake3(self._secret + unseen.rollout_id.to_bytes(8, "little")).digest(length=8)
        if int.from_bytes(number, "little") < share * (1 << 64):
            self._waiting[unseen.rollout_id] = unseen
            while len(self._waiting) > WAITING_MAX:
                self._waiting.popitem(last=False)

    def take(self, batch_rollouts: int, oldest_kept: Version) -> tuple[Unseen, ...]:
        """Return the rollouts to judge beside a batch of so many, those that wait for longest first.

        Rollouts of versions before ``oldest_kept``, which the learner may not have any more, are discarded.
        """
        most = min(batch_rollouts, max(_LEAST, int(BATCH_SHARE * batch_rollouts)))
        taken: list[Unseen] = []
        while self._waiting and len(taken) < most:
            unseen = self._waiting.popitem(last=False)[1]
            if unseen.oldest_version >= oldest_kept:
                taken.append(unseen)
        self.newest = tuple(taken)
        return self.newest

    def discard(self, peer_id: PeerId) -> None:
        """Discard the rollouts of a convicted peer, about which nothing more has to be found out."""
        self._waiting = OrderedDict((key, one) for key, one in self._waiting.items() if one.peer_id != peer_id)
