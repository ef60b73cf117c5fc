"""An invite has all that its holder needs."""

from __future__ import annotations

from typing import cast

from coordinator.join import InviteIssuer, JoinDesk
from rollcast.wire.ids import RunId
from rollcast.wire.joining.invite import Invite


class FakeDesk:
    grpc_address = "run.example:7400"

    async def new_invite(self, role: str, *, quota: int, lifetime_s: float, note: str = "") -> str:
        return f"{role}-{quota}-{lifetime_s:g}"


async def test_an_invite_names_both_ports_and_what_to_trust() -> None:
    inviting = InviteIssuer(
        cast(JoinDesk, FakeDesk()), run_id=RunId("run-1"), ca_sha256="a" * 64, learner_public_key="b" * 64
    )
    inviting.http_url = "https://run.example:7401"
    made = await inviting.invite("peer", quota=2, lifetime_s=60.0)
    assert made.token == "peer-2-60"
    assert Invite.decode(made.encode()) == made


async def test_an_invite_names_the_further_places_of_the_configuration() -> None:
    inviting = InviteIssuer(
        cast(JoinDesk, FakeDesk()), run_id=RunId("run-1"), ca_sha256="a" * 64, learner_public_key="b" * 64
    )
    inviting.http_url, inviting.further = "https://run.example:7401", ("10.0.0.5",)
    made = Invite.decode((await inviting.invite("peer", quota=2, lifetime_s=60.0)).encode())
    assert [place.grpc_address for place in made.places()] == ["run.example:7400", "10.0.0.5:7400"]
