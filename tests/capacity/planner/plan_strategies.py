"""Generate demands and pools for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from capacity.model.demand import Demand
from capacity.model.topologies import Topology
from capacity.model.workers import Speed, Worker

TOPOLOGIES = (Topology(), Topology("stripes", 4), Topology("tree"), Topology("chain"), Topology("star"))


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, allow_subnormal=False)


@st.composite
def speeds(draw: st.DrawFn) -> tuple[Speed, ...]:
    """Generate speeds whose rate and time of one rollout both rise with the concurrency."""
    found, rate, p90_s = [], 0.0, 0.0
    for concurrency in (1, 4, 16)[: draw(st.integers(0, 3))]:
        rate += draw(numbers(0.05, 1.0))
        p90_s += draw(st.sampled_from([5.0, 10.0, 20.0]))
        found.append(Speed(concurrency, rate, p90_s))
    return tuple(found)


@st.composite
def pools(draw: st.DrawFn, most: int = 8, egress: bool = True) -> list[Worker]:
    return [
        Worker(
            worker_id=f"w{number}",
            speeds=draw(speeds()),
            usd_per_hour=draw(numbers(0.0, 4.0)),
            upload_bytes_per_second=draw(numbers(0.0, 2e7)),
            download_bytes_per_second=draw(numbers(5e6, 1e8)),
            egress_usd_per_gb=draw(st.sampled_from([0.0, 0.0, 0.02, 0.09])) if egress else 0.0,
            relays=draw(st.booleans()) or draw(st.booleans()),
            preemptions_per_hour=draw(st.sampled_from([0.0, 0.1, 1.0])),
            lost_per_preemption_s=300.0,
            region=draw(st.sampled_from(["", "a", "b", "c"])),
            active=draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, most)))
    ]


@st.composite
def demands(draw: st.DrawFn, shapes: tuple[Topology, ...] = TOPOLOGIES) -> Demand:
    return Demand(
        rollouts_per_step=draw(st.integers(1, 200)),
        t_train_s=60.0,
        staleness_limit=draw(st.integers(2, 5)),
        publish_every_steps=draw(st.sampled_from([1, 1, 2])),
        update_bytes=draw(numbers(1e7, 2e9)),
        learner_upload_bytes_per_second=draw(numbers(5e6, 5e7)),
        learner_egress_usd_per_gb=draw(st.sampled_from([0.0, 0.05])),
        topology=draw(st.sampled_from(shapes)),
        pauses_while_receiving=draw(st.booleans()),
        t_swap_s=draw(st.sampled_from([0.0, 2.0])),
        headroom=draw(st.sampled_from([1.0, 1.05, 1.5])),
    )
