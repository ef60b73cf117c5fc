"""Run Kubernetes' own API server and controllers on loopback, with a node that the test plays.

``ROLLCAST_KUBERNETES_BIN`` names a folder with kube-apiserver and kube-controller-manager, and etcd unless that is
installed; ``make test-kubernetes`` builds them from Debian's sources. A container runtime is not needed: what a
kubelet would do with a pod, the node does as far as the API server can see it.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.capacity.providers.kubernetes.fake_cluster import NAMESPACE, kubeconfig

FOLDER = Path(os.environ.get("ROLLCAST_KUBERNETES_BIN", Path(__file__).parents[4] / ".cache" / "kubernetes"))
START_TIMEOUT_S = 90.0
NODE = "node-1"

needs_cluster = pytest.mark.skipif(
    not (FOLDER / "kube-apiserver").exists(),
    reason="needs Kubernetes' API server: run `make test-kubernetes`, which builds one",
)


class RealCluster:
    """Addresses and credentials of a running API server: ``admin`` may do everything, ``ours`` what a Role allows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.etcd_port, self.etcd_peer_port, self.manager_port = _free_ports(4)
        self.tokens = {name: secrets.token_hex(16) for name in ("admin", "ours")}

    def kubeconfig(self, user: str) -> Path:
        folder = self.folder / user
        folder.mkdir(exist_ok=True)
        url, token = f"https://127.0.0.1:{self.port}", self.tokens[user]
        return kubeconfig(folder, url, user={"token": token}, **{"insecure-skip-tls-verify": True})

    def wait_until_ready(self) -> None:
        """Wait until the API server says that it is ready."""
        url, deadline = f"https://127.0.0.1:{self.port}/readyz", time.monotonic() + START_TIMEOUT_S
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.tokens['admin']}"})
        anyone = ssl.create_default_context()
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
        while True:
            try:
                with urllib.request.urlopen(asked, timeout=5.0, context=anyone):
                    return
            except OSError:
                assert time.monotonic() < deadline, (self.folder / "kube-apiserver.log").read_text()[-2000:]
                time.sleep(0.3)

    def commands(self) -> dict[str, list[str]]:
        """Return the programs and arguments of etcd, the API server and the controllers."""
        key, tokens = self.folder / "accounts.pem", self.folder / "tokens.csv"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True, timeout=60)
        tokens.write_text(f'{self.tokens["admin"]},admin,1,"system:masters"\n{self.tokens["ours"]},ours,2\n')
        etcd, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, self.etcd_peer_port))
        return {
            "etcd": [
                shutil.which("etcd", path=f"{FOLDER}:{os.environ['PATH']}") or "etcd",
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
            ],
            "kube-apiserver": [
                str(FOLDER / "kube-apiserver"),
                f"--etcd-servers={etcd}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self.port}",
                f"--cert-dir={self.folder / 'certificates'}",
                "--service-cluster-ip-range=10.96.0.0/24",
                "--authorization-mode=RBAC",
                f"--token-auth-file={tokens}",
                "--service-account-issuer=https://test.invalid",
                f"--service-account-signing-key-file={key}",
                f"--service-account-key-file={key}",
            ],
            "kube-controller-manager": [
                str(FOLDER / "kube-controller-manager"),
                f"--kubeconfig={self.kubeconfig('admin')}",
                "--controllers=job,garbagecollector,serviceaccount",
                "--leader-elect=false",
                "--port=0",
                f"--secure-port={self.manager_port}",
                "--bind-address=127.0.0.1",
                f"--cert-dir={self.folder / 'certificates'}",
            ],
        }


@contextmanager
def started(folder: Path) -> Iterator[RealCluster]:
    """Start a cluster; its programs end with the context."""
    cluster = RealCluster(folder)
    with ExitStack() as stack:
        for name, command in cluster.commands().items():
            if name == "kube-controller-manager":  # it ends if the API server does not answer within 10 s
                cluster.wait_until_ready()
            stack.enter_context(_running(command, folder / f"{name}.log"))
        yield cluster


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()
            process.wait()


class Administrator:
    """The cluster's administrator and its only node."""

    def __init__(self, client: Any) -> None:
        from kubernetes_asyncio.client import CoreV1Api, RbacAuthorizationV1Api

        self._client = client
        self._core, self._rbac = CoreV1Api(client), RbacAuthorizationV1Api(client)
        self.saw: dict[str, str] = {}
        """Name of a Job -> the invite that its pod found in its Secret."""

    async def prepare(self, rules: list[dict[str, Any]]) -> None:
        """Wait for the API server; make the namespace, and a Role with these rules for the user ``ours``."""
        await _eventually(lambda: self._core.create_namespace({"metadata": {"name": NAMESPACE}}))
        await _eventually(lambda: self._core.read_namespaced_service_account("default", NAMESPACE))
        role, subject = "rbac.authorization.k8s.io", {"kind": "User", "name": "ours"}
        await self._rbac.create_namespaced_role(NAMESPACE, {"metadata": {"name": "ours"}, "rules": rules})
        binding = {
            "metadata": {"name": "ours"},
            "roleRef": {"apiGroup": role, "kind": "Role", "name": "ours"},
            "subjects": [{**subject, "apiGroup": role}],
        }
        await self._rbac.create_namespaced_role_binding(NAMESPACE, binding)

    async def would_accept(self, made: Sequence[Mapping[str, Any]]) -> None:
        """Let the API server check objects as if they were created; it raises where it refuses one."""
        from kubernetes_asyncio.client import AppsV1Api, BatchV1Api, NetworkingV1Api

        create = {
            "ConfigMap": self._core.create_namespaced_config_map,
            "Secret": self._core.create_namespaced_secret,
            "Service": self._core.create_namespaced_service,
            "ServiceAccount": self._core.create_namespaced_service_account,
            "Job": BatchV1Api(self._client).create_namespaced_job,
            "NetworkPolicy": NetworkingV1Api(self._client).create_namespaced_network_policy,
            "Role": self._rbac.create_namespaced_role,
            "RoleBinding": self._rbac.create_namespaced_role_binding,
            "StatefulSet": AppsV1Api(self._client).create_namespaced_stateful_set,
            "Deployment": AppsV1Api(self._client).create_namespaced_deployment,
        }
        for one in made:
            await create[one["kind"]](NAMESPACE, one, dry_run="All")

    async def run_pods(self) -> None:
        """Be the node until cancelled: run every pod, and end those that are to be deleted."""
        while True:
            for pod in (await self._core.list_namespaced_pod(NAMESPACE)).items:
                await self._advance(pod)
            await asyncio.sleep(0.1)

    async def _advance(self, pod: Any) -> None:
        from kubernetes_asyncio.client import ApiException

        name = pod.metadata.name
        with suppress(ApiException):  # the pod, or its Secret, is not there any more or not yet
            if pod.metadata.deletion_timestamp is not None:
                await self._core.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)
            elif not pod.spec.node_name:
                target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
                body = {"metadata": {"name": name}, "target": target}
                await self._core.create_namespaced_pod_binding(name, NAMESPACE, body, _preload_content=False)
            elif pod.status.phase == "Pending":
                secret = await self._core.read_namespaced_secret(pod.metadata.labels["rollcast/worker"], NAMESPACE)
                self.saw[secret.metadata.name] = base64.b64decode(secret.data["invite"]).decode().strip()
                await self._set_phase(name, "Running")

    async def end(self, job: str, phase: str) -> None:
        """End the pod of a Job, as its container's exit would."""
        pods = (await self._core.list_namespaced_pod(NAMESPACE, label_selector=f"rollcast/worker={job}")).items
        await self._set_phase(pods[0].metadata.name, phase)

    async def secrets(self) -> list[str]:
        """Return the names of the workers' Secrets."""
        found = await self._core.list_namespaced_secret(NAMESPACE, label_selector="rollcast/run")
        return [one.metadata.name for one in found.items]

    async def _set_phase(self, name: str, phase: str) -> None:
        await self._core.patch_namespaced_pod_status(name, NAMESPACE, {"status": {"phase": phase}})


async def _eventually(call: Any) -> None:
    from aiohttp import ClientError
    from kubernetes_asyncio.client import ApiException

    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            await call()
        except (ApiException, ClientError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.3)
        else:
            return


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
