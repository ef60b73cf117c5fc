"""A taskset and an environment of the package verifiers: doubling a number, and doubling it twice."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf


class NumberData(vf.TaskData):
    answer: str
    teacher: list[str]


class Double(vf.Task[NumberData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        if trace.last_reply == "break":
            raise ValueError("the reward is broken")
        return float(trace.last_reply == self.data.answer)


class Doubles(vf.Taskset[Double]):
    def load(self) -> Iterator[Double]:
        for number in range(10, 20):
            right, said = str(4 * number), [str(2 * number), str(4 * number)]
            yield Double(NumberData(prompt=f"{number}+{number}=", system_prompt="Add.", answer=right, teacher=said))


class TwiceConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class Twice(vf.Env[TwiceConfig]):
    """The policy doubles the number, and then what it said."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as chat:
            said = (await chat.turn()).last_reply
            if said != "leave":
                await chat.turn(f"{said}+{said}=")


__all__ = ["Doubles", "Twice"]
