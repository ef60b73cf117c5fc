"""Keep Prometheus metrics in a registry of one process, so that tests do not share state."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def new_registry() -> CollectorRegistry:
    """Return an empty registry, to be passed to every metric of one process."""
    return CollectorRegistry(auto_describe=True)


def render(registry: CollectorRegistry) -> bytes:
    """Return the registry's metrics in Prometheus' text format."""
    return generate_latest(registry)
