from __future__ import annotations

from random import Random
from typing import Any

from rollcast.sim.kernel.event_queue import Agenda
from rollcast.sim.kernel.network import Line, Network, Weather
from rollcast.sim.kernel.process import Process
from rollcast.sim.kernel.rpc import Call, Failed, Reply, Server


class World:
    def __init__(self) -> None:
        self.network = Network(Agenda(), Random(0), Weather())
        for name in ("client", "server"):
            self.network.add(name, Line(delay_s=0.05))
        self.client = Process("client", self.network.agenda)
        self.server = Server("server", self.network)
        self.client.start()
        self.server.start()
        self.asked: list[Any] = []
        self.outcomes: list[Any] = []
        self.slow: list[Reply] = []

    def echo(self, request: Any, reply: Reply) -> None:
        self.asked.append(request)
        self.server.closed(reply)
        reply.send(request)

    def never(self, request: Any, reply: Reply) -> None:
        self.asked.append(request)
        self.slow.append(reply)

    def ask(self, handler: Any, times: int = 1) -> None:
        call = Call(self.network, self.client, self.server, handler, "hello", times)
        call.begin(self.outcomes.append, timeout_s=2.0)


def test_a_call_is_answered_after_a_round_trip() -> None:
    world = World()
    world.ask(world.echo)
    world.network.agenda.run(0.19)
    assert world.outcomes == []
    world.network.agenda.run(5.0)
    assert world.outcomes == ["hello"]


def test_a_repeated_request_is_carried_out_twice_and_answered_once() -> None:
    world = World()
    world.ask(world.echo, times=2)
    world.network.agenda.run(5.0)
    assert (world.asked, world.outcomes) == (["hello", "hello"], ["hello"])


def test_failures_are_told_apart_from_answers() -> None:
    world = World()
    world.ask(world.never)
    world.network.agenda.run(5.0)
    world.slow[0].send("too late")
    world.network.agenda.run(6.0)
    world.server.kill()
    world.ask(world.echo)
    world.network.agenda.run(9.0)
    assert [type(outcome) for outcome in world.outcomes] == [Failed, Failed]
    assert [outcome.reason for outcome in world.outcomes] == ["no answer for 2 s", "connection refused"]


def test_a_server_that_dies_resets_its_open_calls() -> None:
    world = World()
    world.ask(world.never)
    world.network.agenda.run(0.5)
    world.server.kill()
    world.network.agenda.run(1.0)
    assert world.outcomes[0].reason == "connection reset"
