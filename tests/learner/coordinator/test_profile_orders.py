"""Test which profile a learner may begin: one that the coordinator knows it has, and waits for."""

from __future__ import annotations

from learner.coordinator.profile_orders import ProfileOrders
from rollcast.wire.proto import rollcast_pb2 as pb


def order(name: str = "a") -> pb.ProfileOrder:
    return pb.ProfileOrder(profile_id=name, steps=3)


def test_a_profile_begins_once_the_coordinator_has_the_report_on_it() -> None:
    orders = ProfileOrders()
    assert orders.report is None
    assert orders.answered(order(), sent=None), "it is reported on at once"
    assert (orders.report, orders.may_begin()) == (pb.ProfileReport(profile_id="a"), None)
    assert not orders.answered(order(), sent=None), "the answer to a status from before"
    assert orders.may_begin() is None
    assert not orders.answered(order(), sent=orders.report)
    assert orders.may_begin() == order()
    orders.report_on(pb.ProfileReport(profile_id="a", begun=True, first_step=7))
    assert orders.may_begin() is None
    assert orders.is_wanted("a")
    orders.answered(None, sent=orders.report)
    assert not orders.is_wanted("a")


def test_a_profile_that_was_given_up_before_it_began_does_not_begin() -> None:
    orders = ProfileOrders()
    orders.answered(order(), sent=None)
    orders.answered(order(), sent=orders.report)
    orders.answered(None, sent=orders.report)
    assert orders.may_begin() is None


def test_a_report_on_an_earlier_profile_is_no_report_on_the_next() -> None:
    orders = ProfileOrders()
    orders.answered(order("a"), sent=None)
    first = orders.report
    assert orders.answered(order("b"), sent=first)
    orders.answered(order("b"), sent=first)
    assert orders.may_begin() is None
    orders.report_on(pb.ProfileReport(profile_id="a", ended=True))
    assert orders.report == pb.ProfileReport(profile_id="b")
