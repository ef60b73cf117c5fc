from __future__ import annotations

from coordinator.core.events.actions import Neighbour, PlanPart, SendPlan, SendProbe, StripePart, TellActivation
from coordinator.shell.peer_sender import activation_message, plan_message, probe_message
from rollcast.wire.ids import PeerId, PlanId, StripeId
from rollcast.wire.proto import rollcast_pb2 as pb


def test_a_part_of_the_plan_goes_out_whole() -> None:
    part = PlanPart(
        neighbours=(
            Neighbour(PeerId("a"), "peer", "a:1", True, lan=True),
            Neighbour(PeerId("o"), "origin", "", False),
        ),
        stripes=(StripePart(StripeId(3), (0,), 5e6),),
        list_children=(0,),
        parents=(1,),
        fallbacks=(Neighbour(PeerId("mirror-0"), "mirror", "https://m/x", True),),
        direct_copies=True,
    )
    assert plan_message(SendPlan(PeerId("b"), PlanId(9), part)).relay_plan == pb.RelayPlan(
        plan_id=9,
        neighbours=[
            pb.PlanNeighbour(peer_id="a", role="peer", address="a:1", we_dial=True, lan=True),
            pb.PlanNeighbour(peer_id="o", role="origin"),
        ],
        stripes=[pb.PlanStripe(stripe=3, children=[0], bytes_per_second=5e6)],
        list_children=[0],
        parents=[1],
        fallbacks=[pb.PlanNeighbour(peer_id="mirror-0", role="mirror", address="https://m/x", we_dial=True)],
        direct_copies=True,
    )


def test_a_probe_names_its_bounds() -> None:
    message = probe_message(SendProbe(PeerId("a"), 4, PeerId("b"), 1000, 2.0))
    assert message.probe == pb.Probe(probe_id=4, peer_id="b", bytes_max=1000, seconds_max=2.0)


def test_a_peer_is_told_whether_it_is_on_and_why() -> None:
    message = activation_message(TellActivation(PeerId("a"), False, "off: too dear"))
    assert message.activation == pb.Activation(active=False, reason="off: too dear")
