"""Call the API of a Kubernetes cluster for the Jobs, Secrets and pods of one namespace."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from capacity.providers.config import KubernetesConfig
from rollcast.runtime.errors import ProviderFailed

LISTED_MOST = 10_000
"""Objects that a list may have: more than the workers of any run, with those that ended within a day."""
_PAGE = 500
_EXISTS, _ABSENT = 409, 404
_MERGE = "application/merge-patch+json"


class Cluster:
    """One namespace of a cluster.

    Methods raise ``kubernetes_asyncio.client.ApiException`` if the cluster refuses, and aiohttp's ``ClientError`` if it
    cannot be reached; ``reason_of`` puts the former in words.
    """

    def __init__(self, client: Any, namespace: str) -> None:
        from kubernetes_asyncio.client import BatchV1Api, CoreV1Api

        self._client, self._namespace = client, namespace
        self._batch, self._core = BatchV1Api(client), CoreV1Api(client)

    @classmethod
    async def open(cls, config: KubernetesConfig) -> Cluster:
        """Read where the cluster is and who we are; nothing is sent yet.

        Raises:
            ProviderFailed: the configuration of the cluster cannot be read.
        """
        from kubernetes_asyncio import client
        from kubernetes_asyncio import config as credentials

        found = client.Configuration()
        try:
            if config.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                credentials.load_incluster_config(client_configuration=found)
            else:
                await credentials.load_kube_config(
                    None if config.kubeconfig is None else str(config.kubeconfig),
                    context=config.context or None,
                    client_configuration=found,
                    persist_config=False,
                )
        except (credentials.ConfigException, OSError) as error:
            raise ProviderFailed(
                "no cluster is configured", cause=str(error), fix="set providers.kubernetes.kubeconfig, or its context"
            ) from None
        return cls(client.ApiClient(found), config.namespace)

    async def job(self, name: str) -> Any:
        """Return a Job, a V1Job; None if there is none of this name."""
        return await _unless(_ABSENT, self._batch.read_namespaced_job(name, self._namespace))

    async def create_job(self, job: Mapping[str, Any]) -> Any:
        """Create a Job and return it; None if there is one of this name."""
        return await _unless(_EXISTS, self._batch.create_namespaced_job(self._namespace, job))

    async def change_job(self, name: str, change: Mapping[str, Any]) -> Any:
        """Merge a change into a Job and return it; None if there is none of this name."""
        patch = self._batch.patch_namespaced_job(name, self._namespace, change, _content_type=_MERGE)
        return await _unless(_ABSENT, patch)

    async def create_secret(self, secret: Mapping[str, Any]) -> bool:
        """Create a Secret; False if there is one of this name."""
        created = await _unless(_EXISTS, self._core.create_namespaced_secret(self._namespace, secret))
        return created is not None

    async def delete_secret(self, name: str) -> None:
        """Delete a Secret if there is one."""
        await _unless(_ABSENT, self._core.delete_namespaced_secret(name, self._namespace))

    async def jobs(self, label: str) -> list[Any]:
        """Return the Jobs with a label, ``KEY=VALUE``."""
        return await self._all(self._batch.list_namespaced_job, label)

    async def pods(self, label: str) -> list[Any]:
        """Return the pods with a label, ``KEY=VALUE``."""
        return await self._all(self._core.list_namespaced_pod, label)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _all(self, list_page: Any, label: str) -> list[Any]:
        found: list[Any] = []
        following = ""
        while True:
            page = await list_page(self._namespace, label_selector=label, limit=_PAGE, _continue=following or None)
            found += page.items
            following = page.metadata._continue
            if not following:
                return found
            if len(found) > LISTED_MOST:
                raise ProviderFailed(f"more than {LISTED_MOST} objects have the label {label}", fix="delete old Jobs")


def reason_of(error: Any) -> str:
    """Return in words why a cluster refused.

    Args:
        error: an ``ApiException``.
    """
    try:
        message = str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        message = str(error.reason)
    return f"{error.status}: {message[:600]}"


async def _unless(status: int, call: Any) -> Any:
    """Return a call's result; None if it is refused with this status."""
    from kubernetes_asyncio.client import ApiException

    try:
        return await call
    except ApiException as error:
        if error.status != status:
            raise
        return None
