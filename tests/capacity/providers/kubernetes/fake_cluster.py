"""Play a cluster's API server, its Job controller and its node, as far as the provider uses them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

NAMESPACE = "rollcast"
_POD_ENDS_AFTER_LOOKS = 3  # how often Jobs and pods are read until the pod of a stopped Job has ended


class FakeCluster:
    """Objects of one namespace in memory; ``refuse`` makes every call fail with that status."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.refuse = 0
        self.delay_s = 0.0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._gate])
        jobs, core = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", f"/api/v1/namespaces/{NAMESPACE}"
        app.router.add_post(jobs, self._create_job)
        app.router.add_get(jobs, self._list_jobs)
        app.router.add_get(f"{jobs}/{{name}}", self._read_job)
        app.router.add_patch(f"{jobs}/{{name}}", self._change_job)
        app.router.add_get(f"{core}/pods", self._list_pods)
        app.router.add_post(f"{core}/secrets", self._create_secret)
        app.router.add_delete(f"{core}/secrets/{{name}}", self._delete_secret)
        return app

    def end(self, name: str, condition: str = "Complete") -> None:
        """End a Job's pod, as when its worker ends by itself."""
        self.pods.pop(name, None)
        self.jobs[name]["status"]["conditions"] = [_condition(condition)]

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        await asyncio.sleep(self.delay_s)
        if self.refuse:
            return _refusal(self.refuse, "jobs.batch is forbidden")
        response: web.StreamResponse = await handler(request)
        return response

    async def _create_job(self, request: web.Request) -> web.Response:
        job = await request.json()
        name = job["metadata"]["name"]
        if name in self.jobs:
            return _refusal(409, "exists")
        job["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": _now(), "namespace": NAMESPACE}
        job["spec"].setdefault("parallelism", 1)
        job["status"] = {}
        self.jobs[name] = job
        if job["spec"]["parallelism"]:
            labels = job["spec"]["template"]["metadata"]["labels"]
            pod = {"metadata": {"name": f"{name}-x", "labels": labels}, "status": {"phase": "Running"}, "looks": 0}
            self.pods[name] = {**pod, "spec": job["spec"]["template"]["spec"]}
        return web.json_response(job, status=201)

    async def _list_jobs(self, request: web.Request) -> web.Response:
        return self._page(request, self.jobs)

    async def _read_job(self, request: web.Request) -> web.Response:
        self._let_pods_end()
        job = self.jobs.get(request.match_info["name"])
        return _refusal(404, "absent") if job is None else web.json_response(job)

    async def _change_job(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/merge-patch+json"
        job = self.jobs.get(request.match_info["name"])
        if job is None:
            return _refusal(404, "absent")
        job["spec"] |= (await request.json())["spec"]
        if request.match_info["name"] not in self.pods:
            job["status"].setdefault("conditions", [_condition("Failed")])
        return web.json_response(job)

    async def _list_pods(self, request: web.Request) -> web.Response:
        self._let_pods_end()
        return self._page(request, self.pods)

    def _let_pods_end(self) -> None:
        for name, pod in list(self.pods.items()):
            if not self.jobs[name]["spec"]["parallelism"]:
                pod["looks"] += 1
                if pod["looks"] > _POD_ENDS_AFTER_LOOKS:
                    self.end(name, "Failed")

    def _page(self, request: web.Request, held: dict[str, dict[str, Any]]) -> web.Response:
        key, _, value = request.query["labelSelector"].partition("=")
        found = [held[name] for name in sorted(held) if held[name]["metadata"].get("labels", {}).get(key) == value]
        begin = int(request.query.get("continue") or 0)
        end = begin + min(2, int(request.query["limit"]))  # pages of two, so that few objects take several
        following = str(end) if end < len(found) else ""
        return web.json_response({"items": found[begin:end], "metadata": {"continue": following}})

    async def _create_secret(self, request: web.Request) -> web.Response:
        secret = await request.json()
        name = secret["metadata"]["name"]
        if name in self.secrets:
            return _refusal(409, "exists")
        assert secret["metadata"]["ownerReferences"][0]["uid"] == self.jobs[name]["metadata"]["uid"]
        self.secrets[name] = secret
        return web.json_response(secret, status=201)

    async def _delete_secret(self, request: web.Request) -> web.Response:
        found = self.secrets.pop(request.match_info["name"], None)
        return _refusal(404, "absent") if found is None else web.json_response({})


@asynccontextmanager
async def serving(cluster: FakeCluster, folder: Path) -> AsyncIterator[Path]:
    """Serve a cluster on loopback; gives the path of a kubeconfig for it."""
    runner = web.AppRunner(cluster.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield kubeconfig(folder, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


def kubeconfig(folder: Path, url: str, *, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    """Write the configuration of one cluster with one user."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "us", "user": user or {"token": "not-checked"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "us"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message, "code": status}, status=status)


def _condition(kind: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "lastTransitionTime": _now()}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
