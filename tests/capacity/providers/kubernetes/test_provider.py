"""Test that Jobs of a cluster meet the contract of providers, with a cluster that the test plays."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from capacity.providers.base import WorkerTag
from capacity.providers.config import ProviderConfigs
from capacity.providers.kubernetes.provider import KubernetesProvider
from capacity.providers.tag_names import name_of
from rollcast.runtime.errors import ProviderFailed
from tests.capacity.providers.conformance import DEADLINE_S, INVITE, Setting, check, running
from tests.capacity.providers.kubernetes.fake_cluster import FakeCluster, serving
from tests.capacity.providers.pool_machines import machines

ROW: dict[str, str | int] = {"worker_id": "a100", "count": 6, "start": "kubernetes", "hardware": "A100-SXM4-80GB"}
TAG = WorkerTag("run-1", "a100-1", 1)


@dataclass(frozen=True)
class Place:
    cluster: FakeCluster
    kubeconfig: Path

    def provider(self, *, image: str = "rollcast-peer:0.1.0-cuda13") -> KubernetesProvider:
        config = {"kubernetes": {"kubeconfig": str(self.kubeconfig), "image": image}}
        return KubernetesProvider("kubernetes", machines(dict(ROW)), ProviderConfigs.model_validate(config))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    cluster = FakeCluster()
    async with serving(cluster, tmp_path) as path:
        yield Place(cluster, path)


async def test_it_meets_the_contract(place: Place) -> None:
    def saw(tag: WorkerTag) -> str:
        return str(place.cluster.secrets[name_of(tag)]["stringData"]["invite"]).strip()

    await check(Setting(place.provider(), place.provider(), saw))
    assert not place.cluster.secrets  # an invite is gone once its worker was stopped
    assert INVITE not in json.dumps(place.cluster.jobs)


async def test_a_worker_that_ended_by_itself_is_not_listed_and_not_started_again(place: Place) -> None:
    provider = place.provider()
    for condition, tag in (("Complete", TAG), ("Failed", WorkerTag("run-1", "a100-2", 1))):
        await provider.start(tag, INVITE, deadline_s=DEADLINE_S)
        place.cluster.end(name_of(tag), condition)
        with pytest.raises(ProviderFailed, match="a tag is not used again"):
            await provider.start(tag, INVITE, deadline_s=DEADLINE_S)
    assert await running(provider, "run-1") == []
    await provider.close()


async def test_a_start_that_broke_off_between_its_job_and_its_secret_is_completed(place: Place) -> None:
    provider = place.provider()
    await provider.start(TAG, "lost", deadline_s=DEADLINE_S)
    place.cluster.secrets.clear()
    await provider.start(TAG, INVITE, deadline_s=DEADLINE_S)
    assert place.cluster.secrets[name_of(TAG)]["stringData"]["invite"] == f"{INVITE}\n"
    await provider.close()


async def test_all_pages_of_a_list_are_read(place: Place) -> None:
    provider = place.provider()
    tags = [WorkerTag("run-1", f"a100-{number}", 1) for number in range(1, 6)]
    for tag in tags:
        await provider.start(tag, INVITE, deadline_s=DEADLINE_S)
    assert await running(provider, "run-1") == sorted(map(str, tags))
    await provider.close()


async def test_a_worker_is_listed_until_its_pod_has_ended(place: Place) -> None:
    """It still costs money."""
    provider = place.provider()
    await provider.start(TAG, INVITE, deadline_s=DEADLINE_S)
    place.cluster.jobs[name_of(TAG)]["spec"]["parallelism"] = 0
    assert await running(provider, "run-1") == [str(TAG)]
    await provider.stop(TAG, deadline_s=DEADLINE_S)
    assert await running(provider, "run-1") == []
    await provider.close()


async def test_refusals_silence_and_an_unreachable_cluster_are_reported(place: Place, tmp_path: Path) -> None:
    provider = place.provider()
    place.cluster.refuse = 403
    with pytest.raises(ProviderFailed, match="refuses to list workers") as refused:
        await provider.list("run-1", deadline_s=DEADLINE_S)
    assert refused.value.cause == "403: jobs.batch is forbidden"
    place.cluster.refuse, place.cluster.delay_s = 0, 5.0
    with pytest.raises(ProviderFailed, match=r"did not stop a worker within 0\.1 s"):
        await provider.stop(TAG, deadline_s=0.1)
    await provider.close()
    gone = Place(place.cluster, tmp_path / "gone")
    gone.kubeconfig.write_text(place.kubeconfig.read_text().replace("http://127.0.0.1:", "http://127.0.0.1:1#"))
    lost = gone.provider()
    with pytest.raises(ProviderFailed, match="cannot be reached"):
        await lost.list("run-1", deadline_s=DEADLINE_S)
    await lost.close()


async def test_a_missing_configuration_and_a_missing_image_are_reported(place: Place, tmp_path: Path) -> None:
    with pytest.raises(ProviderFailed, match="no cluster is configured"):
        await Place(place.cluster, tmp_path / "absent").provider().list("run-1", deadline_s=DEADLINE_S)
    with pytest.raises(ProviderFailed, match="which image"):
        await place.provider(image="").start(TAG, INVITE, deadline_s=DEADLINE_S)
