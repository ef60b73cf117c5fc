"""Test that the compose file's services, each in namespaces of its own, join each other and train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.deploy.compose_here import ComposeHere, why_not

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_stack_comes_up_and_trains(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(f"the compose file was not run: {reason}")
    coordinator = tmp_path / "coordinator.toml"
    written = (DEPLOY / "compose" / "coordinator.toml").read_text()
    coordinator.write_text(written.replace("steps = 200", "steps = 8").replace("stay_s = 86400", "stay_s = 0"))
    learner = tmp_path / "learner.toml"
    learner.write_text((DEPLOY / "compose" / "learner.toml").read_text() + "\n[warm_start]\nsteps_max = 20\n")
    instead = {"./compose/coordinator.toml": coordinator, "./compose/learner.toml": learner}
    with ComposeHere(DEPLOY / "compose.yaml", tmp_path, instead) as stack:
        stack.up(deadline_s=180.0)
        stack.stop_all()
        stack.up(deadline_s=180.0)  # with the keys and the read-only files of the first time
        link = stack.run("coordinator", ["rollcast", "dashboard", "/state/run"])
        assert link.stdout.startswith("https://127.0.0.1:7401/#token="), link.stdout + link.stderr
        scrape = stack.run(
            "learner",
            ["python", "-c", _SCRAPE, (stack.volume("handout") / "prometheus.token").read_text().strip()],
        )
        assert scrape.returncode == 0, scrape.stderr
        assert "rollcast_learner_steps_target 8.0" in scrape.stdout
        assert stack.wait("learner", 400.0) == 0, stack.log("learner")[-2000:]
        assert stack.wait("coordinator", 60.0) == 0, stack.log("coordinator")[-2000:]  # its stay_s is 0 here
        summary = json.loads((stack.volume("coordinator") / "run" / "summary.json").read_text())
    assert (summary["phase"], summary["step"]) == ("finished", 8)
    assert summary["rollouts"]["trained"] > 0
    assert summary["peer_byte_share"] > 0


# Prometheus trusts the run's own authority and sends a viewer's token.
_SCRAPE = """
import ssl, sys, urllib.request
context = ssl.create_default_context(cafile="/handout/ca.pem")
request = urllib.request.Request("https://coordinator:7401/metrics", headers={"Authorization": "Bearer " + sys.argv[1]})
print(urllib.request.urlopen(request, timeout=10, context=context).read().decode())
"""
