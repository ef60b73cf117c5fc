"""Test the simulated network, and calls over it."""

from __future__ import annotations

import gc
from random import Random
from typing import Any

from rollcast.sim.kernel.event_queue import Agenda
from rollcast.sim.kernel.network import Line, Network, Stream, Weather
from rollcast.sim.kernel.process import Process
from rollcast.sim.kernel.rpc import Call, Failed, Reply, Server

LINE = Line(up_bytes_s=1000.0, down_bytes_s=1e9, delay_s=0.05)


def network(weather: Weather | None = None) -> Network:
    made = Network(Agenda(), Random(0), weather or Weather(), piece_bytes=100.0)
    for name in ("a", "b", "c"):
        made.add(name, LINE)
    return made


def listening(made: Network, source: str, target: str) -> tuple[Stream, list[tuple[float, object]]]:
    received: list[tuple[float, object]] = []
    stream = Stream(made, source, target, lambda message: received.append((round(made.agenda.now, 3), message)))
    return stream, received


def test_messages_arrive_after_both_delays_and_in_order() -> None:
    made = network(Weather(jitter_s=1.0, loss=0.3))
    stream, received = listening(made, "a", "b")
    for number in range(20):
        stream.send(number)
    made.agenda.run(60.0)
    assert [message for _, message in received] == list(range(20))
    calm, received = listening(network(), "a", "b")
    calm.send("x")
    calm._network.agenda.run(1.0)
    assert received == [(0.1, "x")]


def test_messages_with_a_size_share_the_uplink() -> None:
    made = network()
    one, received_one = listening(made, "a", "b")
    two, received_two = listening(made, "a", "c")
    one.send("one", 1000.0)
    two.send("two", 1000.0)
    made.agenda.run(10.0)
    assert 1.9 < received_one[0][0] <= received_two[0][0] < 2.2


def test_a_partition_delays_and_loses_nothing() -> None:
    made = network()
    there, received_there = listening(made, "a", "b")
    back, received_back = listening(made, "b", "a")
    made.cut("a", "b")
    there.send(1)
    there.send(2)
    back.send("one way")
    made.agenda.run(5.0)
    assert (received_there, received_back) == ([], [(0.1, "one way")])
    made.mend("a", "b")
    made.agenda.run(6.0)
    assert [message for _, message in received_there] == [1, 2]


def test_cuts_add_up() -> None:
    made = network()
    made.cut("a", "")
    made.cut("a", "")
    made.cut("", "c")
    assert not made.reaches("a", "b")
    assert not made.reaches("b", "c")
    assert made.reaches("b", "a")
    made.mend("a", "")
    assert not made.reaches("a", "b")
    made.mend("a", "")
    assert made.reaches("a", "b")


def test_no_message_arrives_after_the_end() -> None:
    made = network()
    stream, received = listening(made, "a", "b")
    stream.send(1)
    stream.send(2, 500.0)
    stream.close()
    made.agenda.run(5.0)
    assert received == []


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


def test_a_call_that_has_ended_is_not_left_to_the_garbage_collector() -> None:
    def living() -> int:
        return sum(isinstance(one, Call | Stream) for one in gc.get_objects())

    world = World()
    gc.collect()
    gc.disable()  # it may find others' garbage at any time, and must free nothing here
    try:
        before = living()
        world.ask(world.echo)
        assert living() > before
        world.network.agenda.run(5.0)
        assert world.outcomes == ["hello"]
        assert living() == before
    finally:
        gc.enable()


def test_failures_are_distinguished_from_answers() -> None:
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
