"""Run workers as Jobs of a Kubernetes cluster, through its API."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientError

from capacity.providers.base import Listing, Offer, Running, WorkerTag
from capacity.providers.config import KubernetesConfig, ProviderConfigs, tail_s
from capacity.providers.kubernetes import objects
from capacity.providers.kubernetes.api import Cluster, reason_of
from capacity.providers.machines import Machine, find_machine
from capacity.providers.tag_names import name_of, run_digest, tag_of
from rollcast.runtime.errors import MissingExtra, ProviderFailed
from rollcast.runtime.install import install_command

_POLL_S = 0.5


class KubernetesProvider:
    """The provider of one namespace of a cluster; see Provider.

    A Job that ended stays for a day as the record of its tag, with the API server, so that any coordinator finds it.
    """

    def __init__(self, name: str, machines: Sequence[Machine], config: ProviderConfigs) -> None:
        """Keep the configuration; nothing is started.

        Raises:
            MissingExtra: the client of Kubernetes is not installed.
        """
        if importlib.util.find_spec("kubernetes_asyncio") is None:
            raise MissingExtra("workers on Kubernetes need its client", fix=install_command("kubernetes"))
        self._name = name
        self._config: KubernetesConfig = config.kubernetes
        self._machines = {machine.worker_id: machine for machine in machines}
        self._peers = {machine.worker_id: machine.peer(config.peer, self._config.peer) for machine in machines}
        self._cluster: Cluster | None = None

    @property
    def name(self) -> str:
        return self._name

    async def offers(self, *, deadline_s: float) -> tuple[Offer, ...]:
        return tuple(machine.offer(tail_s(self._peers[one])) for one, machine in self._machines.items())

    async def start(self, tag: WorkerTag, invite: str, *, deadline_s: float) -> Running:
        if not self._config.image:
            raise ProviderFailed(
                "nothing says which image a worker on Kubernetes runs",
                cause="providers.kubernetes.image is empty",
                fix="set it to the peer's image of a release, for example ghcr.io/you/rollcast-peer:0.1.0-cuda13",
            )
        machine = find_machine(self._machines, tag.worker_id, self.name)
        async with self._cluster_within(deadline_s, "start a worker") as cluster:
            job = await cluster.create_job(objects.job_of(tag, machine.row, self._config))
            job = job or await cluster.job(name_of(tag))
            if job is None or objects.is_stopped(job):
                raise ProviderFailed(f"{self._where(tag)} ended or was stopped before, and a tag is not used again")
            peer = self._peers[tag.worker_id]
            secret = objects.secret_of(tag, machine, peer, invite, str(job.metadata.uid), self._config)
            await cluster.create_secret(secret)  # one that exists has the invite of the start that made the Job
            return self._running(tag, job)

    async def stop(self, tag: WorkerTag, *, deadline_s: float) -> None:
        name = name_of(tag)
        async with self._cluster_within(deadline_s, "stop a worker") as cluster:
            if await cluster.change_job(name, objects.STOPPED) is None:
                if await cluster.create_job(objects.stopped_job_of(tag)) is not None:
                    return  # it was never started, and will not be
                await cluster.change_job(name, objects.STOPPED)
            await cluster.delete_secret(name)
            while not await _is_gone(cluster, name):  # noqa: ASYNC110 - the cluster changes it
                await asyncio.sleep(_POLL_S)

    async def list(self, run_id: str, *, deadline_s: float) -> Listing:
        label = f"{objects.RUN_LABEL}={run_digest(run_id)}"
        async with self._cluster_within(deadline_s, "list workers") as cluster:
            jobs, pods = await cluster.jobs(label), await cluster.pods(label)
        alive = {pod.metadata.labels.get(objects.WORKER_LABEL) for pod in pods if objects.is_alive(pod)}
        named = [(tag_of(job.metadata.name, run_id), job) for job in jobs]
        return Listing(
            tuple(
                self._running(tag, job)
                for tag, job in named
                if tag is not None and (job.metadata.name in alive or not objects.is_stopped(job))
            )
        )

    async def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()

    def _running(self, tag: WorkerTag, job: Any) -> Running:
        began = (job.status and job.status.start_time) or job.metadata.creation_timestamp
        return Running(tag, self._where(tag), began.timestamp())

    def _where(self, tag: WorkerTag) -> str:
        return f"job {self._config.namespace}/{name_of(tag)}"

    @asynccontextmanager
    async def _cluster_within(self, deadline_s: float, what: str) -> AsyncIterator[Cluster]:
        """Give the cluster for calls within a deadline; whatever they raise becomes ProviderFailed."""
        from kubernetes_asyncio.client import ApiException

        try:
            async with asyncio.timeout(deadline_s):
                if self._cluster is None:
                    self._cluster = await Cluster.open(self._config)
                yield self._cluster
        except TimeoutError:
            raise ProviderFailed(f"the cluster did not {what} within {deadline_s:g} s") from None
        except ApiException as error:
            raise ProviderFailed(
                f"the cluster refuses to {what}",
                cause=reason_of(error),
                fix=f"see what `kubectl auth can-i --list -n {self._config.namespace}` says (docs/providers.md)",
            ) from None
        except (ClientError, OSError) as error:
            raise ProviderFailed("the cluster cannot be reached", cause=str(error) or type(error).__name__) from None


async def _is_gone(cluster: Cluster, name: str) -> bool:
    """Return whether a stopped Job has no pod, and will have none.

    The Job's controller may still create a pod until it has marked the Job as ended, unless Kueue holds it back.
    """
    job = await cluster.job(name)
    is_final = job is None or objects.has_ended(job) or bool(job.spec.suspend)
    return is_final and not any(map(objects.is_alive, await cluster.pods(f"{objects.WORKER_LABEL}={name}")))
