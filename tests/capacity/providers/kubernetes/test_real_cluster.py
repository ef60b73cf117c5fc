"""Test the provider with Kubernetes' own API server, Job controller and access rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from capacity.emit import kubernetes as emitted
from capacity.emit.chosen import ChosenRow
from capacity.providers.base import WorkerTag
from capacity.providers.config import ProviderConfigs
from capacity.providers.kubernetes.provider import KubernetesProvider
from capacity.providers.tag_names import name_of
from rollcast.runtime.errors import ProviderFailed
from tests.capacity.providers.conformance import DEADLINE_S, INVITE, Setting, check, running
from tests.capacity.providers.kubernetes.real_cluster import Administrator, needs_cluster, started
from tests.capacity.providers.pool_machines import machines
from tests.deploy.helm_rendering import Chart

pytestmark = [needs_cluster, pytest.mark.kubernetes, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[4]
CONTROLLER_S = 60.0  # for the cluster's own controllers, on a busy machine too
ROW: dict[str, str | int] = {"worker_id": "h100", "count": 3, "start": "kubernetes", "hardware": "H100", "gpus": 2}


@dataclass(frozen=True)
class Place:
    administrator: Administrator
    kubeconfig: Path

    def provider(self) -> KubernetesProvider:
        config = {"kubernetes": {"kubeconfig": str(self.kubeconfig), "image": "rollcast-peer:0.1.0"}}
        return KubernetesProvider("kubernetes", machines(dict(ROW)), ProviderConfigs.model_validate(config))


def chart_objects(**more: str) -> list[dict[str, Any]]:
    chart = ROOT / "deploy" / "helm" / "rollcast"
    flags = {"workers__enabled": True, "networkPolicies__enabled": True, "dataClaim": "data"}
    replicas = {"gateways__replicas": 2, "peers__replicas": 2, "scorers__replicas": 2}
    return Chart(chart, **flags, **replicas, **more).documents()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """Give a cluster in which we have the rights of the chart's Role, and no other."""
    from kubernetes_asyncio import client, config

    (role,) = [one for one in chart_objects() if one["kind"] == "Role"]
    with started(tmp_path) as cluster:
        found = client.Configuration()
        await config.load_kube_config(str(cluster.kubeconfig("admin")), client_configuration=found)
        async with client.ApiClient(found) as api:
            administrator = Administrator(api)
            await administrator.prepare(role["rules"])
            node = asyncio.create_task(administrator.run_pods())
            yield Place(administrator, cluster.kubeconfig("ours"))
            node.cancel()
            with suppress(asyncio.CancelledError):
                await node


async def test_it_meets_the_contract_with_the_rights_of_the_charts_role(place: Place) -> None:
    await check(Setting(place.provider(), place.provider(), lambda tag: place.administrator.saw.get(name_of(tag), "")))
    assert await place.administrator.secrets() == []
    await check_workers_that_end_by_themselves(place)
    await check_that_the_charts_and_the_emitted_objects_are_accepted(place.administrator)


async def check_workers_that_end_by_themselves(place: Place) -> None:
    provider, administrator = place.provider(), place.administrator
    for phase, number in (("Succeeded", 1), ("Failed", 2)):
        tag = WorkerTag("run-2", f"h100-{number}", 1)
        await provider.start(tag, INVITE, deadline_s=DEADLINE_S)
        async with asyncio.timeout(CONTROLLER_S):
            while name_of(tag) not in administrator.saw:  # noqa: ASYNC110 - the node adds it
                await asyncio.sleep(0.1)
        await administrator.end(name_of(tag), phase)
        async with asyncio.timeout(CONTROLLER_S):
            while await running(provider, "run-2"):  # noqa: ASYNC110 - the cluster ends it
                await asyncio.sleep(0.1)
        with pytest.raises(ProviderFailed, match="a tag is not used again"):
            await provider.start(tag, INVITE, deadline_s=DEADLINE_S)
    await provider.close()


async def check_that_the_charts_and_the_emitted_objects_are_accepted(administrator: Administrator) -> None:
    row = machines(dict(ROW))[0].row
    files = emitted.files_of([ChosenRow(row, row.worker_ids)], "rollcast-peer:0.1.0")
    await administrator.would_accept([*chart_objects(), *yaml.safe_load_all(files.texts["workers.yaml"])])
    shared = chart_objects(store__url="postgresql://db/rollcast", learner__publicKey="ab" * 32)
    # Kubernetes 1.20 has the disruption budget of policy/v1 not yet.
    await administrator.would_accept([one for one in shared if one["kind"] != "PodDisruptionBudget"])
