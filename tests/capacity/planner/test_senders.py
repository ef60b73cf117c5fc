from __future__ import annotations

import numpy as np
import pytest

from capacity.planner.columns import columns_of
from capacity.planner.plans import Split
from capacity.planner.programme import programme_of
from capacity.planner.senders import copies_sent, egress_of, marginal_usd_per_gb
from tests.capacity.planner.test_planner import demand, worker


def test_the_cheapest_send_first_and_those_of_one_price_share() -> None:
    workers = [worker(0), worker(1, upload_bytes_per_second=4e7)]
    workers += [worker(number, egress_usd_per_gb=0.09, usd_per_hour=0.0) for number in (2, 3, 4)]
    wanted = demand(learner_egress_usd_per_gb=0.2, learner_upload_bytes_per_second=2.12e7)
    programme = programme_of(wanted, columns_of(workers), Split(20.0, 53.0))  # rho 20 MB/s
    copies = copies_sent(programme, np.ones(5, np.bool_))
    assert copies.source == pytest.approx(1.0)
    assert copies.receivers.tolist() == pytest.approx([1.0, 2.0, 1 / 3, 1 / 3, 1 / 3])
    assert marginal_usd_per_gb(programme, copies) == 0.09
    egress = egress_of(programme, copies)
    assert egress.origin_usd_per_hour == pytest.approx(0.2 * 60)
    assert egress.workers_usd_per_hour.tolist() == pytest.approx([0, 0, 1.8, 1.8, 1.8])


def test_too_few_uplinks_are_refused() -> None:
    programme = programme_of(demand(), columns_of([worker(n, relays=False) for n in range(4)]), Split(20.0, 30.0))
    with pytest.raises(ValueError, match="cannot send"):
        copies_sent(programme, np.ones(4, np.bool_))
