"""A harness of the package `verifiers` that runs its chat loop in the worker itself.

The package's own harnesses start a program for each episode, which costs a second. A task without tools of its own
needs none: one request gives the policy's answer. Name another harness in ``task.env`` where the task needs one.

This module runs in the worker's interpreter, which may lack our packages: see worker.py.
"""

from __future__ import annotations

from typing import Any

import httpx
import verifiers.v1 as vf

NAME = "rollcast_inline"  # its id for the package
__all__ = ["InlineHarness"]


class InlineConfig(vf.HarnessConfig):  # type: ignore[misc]
    """The harness has no settings of its own."""


class InlineHarness(vf.Harness[InlineConfig]):  # type: ignore[misc]
    """One request to the policy for each segment of a conversation."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Send the conversation to the policy through the package's own endpoint, which records the answer."""
        system, prompt = self.resolve_prompt(data)
        messages = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [one.model_dump(exclude_none=True) for one in prompt or ()]
        body = {"model": ctx.model, "messages": messages}
        # A policy may take minutes, and the pool has the deadline. The endpoint is plain HTTP on loopback; a context of
        # TLS would cost 0.1 s for each client.
        async with httpx.AsyncClient(timeout=None, verify=False, trust_env=False) as client:
            answer = await client.post(
                f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
            )
        if answer.status_code != httpx.codes.OK:
            return vf.ProgramResult(exit_code=1, stdout="", stderr=answer.text[-2000:])
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
