"""Write a pool and a demand that are planned quickly, as files."""

from __future__ import annotations

from pathlib import Path

POOL = """worker_id,count,hardware,region,usd_per_hour,donated,upload_mbit_per_second,download_mbit_per_second,\
egress_usd_per_gb,rollouts_per_second,concurrency,t_gen_p90_s
cheap,3,l4,lab,0.4,no,400,800,0,1.0,8,20
dear,3,l4,cloud,0.9,no,400,800,0.01,1.0,8,20
donor,1,rtx-3090,home,0,yes,40,200,,0.5,4,20
slow,1,t4,home,0.1,no,400,800,0,0.1,1,900
free,1,l4,lab,0,no,400,800,0,1.0,8,20
"""

DEMAND = """[demand]
model = "measured"
rollouts_per_step = 180
t_train_s = 60
staleness_limit = 4
update_bytes = 5e8
learner_upload_mbit_per_second = 1000
learner_egress_usd_per_gb = 0.05
learner_usd_per_hour = 2.0
"""


def small_pool(folder: Path) -> tuple[str, ...]:
    """Write both files and return the options that name them."""
    (folder / "pool.csv").write_text(POOL)
    (folder / "demand.toml").write_text(DEMAND)
    return ("--pool", str(folder / "pool.csv"), "--demand", str(folder / "demand.toml"))
