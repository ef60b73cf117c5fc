"""An environment of the package verifiers: be told a number, and be asked for it in the next turn."""

from random import Random

import verifiers.v1 as vf


class Told(vf.TaskData):
    number: str
    teacher: list[str]  # what the warm start is shown; RL does the rest


class Recall(vf.Task[Told]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.number)


class Numbers(vf.Taskset[Recall]):
    def load(self):
        random = Random(7)
        for _ in range(4000):
            number = random.randrange(10, 100)
            said = str(number) if random.random() < 1 / 3 else str(random.randrange(10, 100))
            yield Recall(Told(prompt=f"it is {number}:", number=str(number), teacher=["ok", said]))


class TwoTurnsConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class TwoTurns(vf.Env[TwoTurnsConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as chat:
            await chat.turn()
            await chat.turn("what is it?")


__all__ = ["Numbers", "TwoTurns"]
