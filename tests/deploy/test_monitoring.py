"""Test that alert rules and the Grafana dashboard use only metrics that are exported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.exported_metrics import exported

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
_SELECTOR = re.compile(r"(rollcast_[a-z0-9_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
#: Labels whose values depend on the run, or that Prometheus adds.
_FREE = {"instance", "state", "age", "peer", "name", "reason"}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana/dashboards/rollcast.json").read_text())["panels"]
    return found


def expressions() -> list[str]:
    asked = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    return [*asked, *(rule["expr"] for rule in rules())]


def unknown(expression: str, known: dict[str, set[tuple[str, str]]]) -> list[str]:
    """Return the metrics and label values of an expression that the coordinator does not export."""
    problems = []
    for name, matchers in _SELECTOR.findall(expression):
        if name not in known:
            problems.append(name)
            continue
        for label, kind, value in _MATCHER.findall(matchers):
            if label in _FREE:
                continue
            values = {found for key, found in known[name] if key == label}
            if not values or (kind == "=" and value not in values):
                problems.append(f"{name}{{{label}={value}}}")
    return problems


def test_every_metric_in_use_is_exported() -> None:
    known = exported()
    assert len(expressions()) > 60
    assert {expression: wrong for expression in expressions() if (wrong := unknown(expression, known))} == {}


def test_the_check_finds_what_is_not_exported() -> None:
    known = exported()
    assert unknown("rate(rollcast_nothing_total[5m])", known) == ["rollcast_nothing_total"]
    assert unknown('rollcast_phase{phase="dancing"}', known) == ["rollcast_phase{phase=dancing}"]


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in rules():
        assert rule["alert"].startswith("Rollcast")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert len(rule["annotations"]["description"]) > 30


def test_panels_have_titles_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert panel["title"]
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.parametrize("arguments", [("check", "rules", "rules.yml"), ("test", "rules", "rules.test.yml")])
def test_promtool_accepts_the_rules_and_their_tests(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("rules were not run: no promtool here (it comes with prometheus)")
    ran = subprocess.run([promtool, *arguments], cwd=RULES.parent, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
