"""Test invites over HTTP: made once, listed without their tokens, revoked for good; and proofs of membership."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any, cast

import pytest

import coordinator
from coordinator.api.invite_auth import check_invited, member_in
from coordinator.api.invites import InviteRoutes, NewInvite
from coordinator.config.config import JoinConfig
from coordinator.http.routes import Caller
from coordinator.join import InviteIssuer, JoinDesk, token_hash
from coordinator.ledger.sqlite import Ledger
from rollcast.cli.run.invite import make
from rollcast.runtime.errors import JoinRefused, NotAllowed
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.run_ca import RunCA
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.joining.invite import QUOTA_DEFAULT, Invite
from tests.coordinator.http.serving import Given, served

PATH = "/api/v1/invites"

NOW = 1000.0


@pytest.mark.parametrize("role", ["peer", "origin"])
async def test_invite_is_created_listed_and_revoked(tmp_path: Path, role: str) -> None:
    (tmp_path / "page").mkdir()
    ledger, run_id = Ledger.open(tmp_path / "invites.sqlite"), RunId("run-1")
    authority = RunCA.create(tmp_path, run_id)
    desk = JoinDesk(
        run_id=run_id,
        ca=authority,
        ledger=ledger,
        learner_public_key=Identity.generate().public_key,
        certificate_lifetime_s=60.0,
        unix_clock=lambda: NOW,
    )
    desk.grpc_address = "127.0.0.1:7400"
    inviting = InviteIssuer(desk, run_id=run_id, ca_sha256=authority.fingerprint, learner_public_key="ab" * 32)
    inviting.http_url = "http://127.0.0.1:7401"
    routes = InviteRoutes(inviting, ledger, lambda: NOW).routes()
    async with served(tmp_path / "page", Given(routes=routes)) as page:
        values = {"role": role, "quota": 2, "lifetime_s": 3600, "note": " for Ann "}
        status, made = await page.post(PATH, values)
        assert status == 200
        assert made["expires_unix_s"] == NOW + 3600
        assert made["command"].endswith(made["invite"])
        assert made["command"].startswith("rollcast peer ")
        token = Invite.decode(made["invite"]).token
        await ledger.claim_invite(token_hash(token), role, PeerId("p"), now_unix_s=NOW)
        listed = (await page.get(PATH))[1]
        assert listed["invites"] == [shown(made, role=role)]
        assert token not in str(listed)
        assert (await page.post(f"{PATH}/{made['id']}/revoke", {}))[1]["invites"][0]["revoked"]
        assert (await page.post(f"{PATH}/{made['id']}/revoke", {}))[1]["code"] == "RC305"
        assert (await page.post(f"{PATH}/%25/revoke", {}))[1]["code"] == "RC305"
        with pytest.raises(JoinRefused, match="was revoked"):
            await ledger.claim_invite(token_hash(token), role, PeerId("q"), now_unix_s=NOW)
        rows = [(row.act, row.detail, row.outcome) for row in await page.audit()]
        assert rows[0] == ("invite", f"{role}, for 2, 3600 s", "done")
        assert made["invite"] not in str(await page.audit())
        for wrong in ({"quota": 0}, {"role": "learner"}, {"lifetime_s": 1}, {"note": "x" * 121}):
            assert (await page.post(PATH, wrong))[0] == 400
        assert (await page.post(PATH, {}, None))[0] == 401
    await ledger.close()


def shown(made: dict[str, Any], *, role: str) -> dict[str, Any]:
    return {
        "id": made["id"],
        "role": role,
        "quota": 2,
        "used": 1,
        "expires_unix_s": made["expires_unix_s"],
        "note": "for Ann",
        "revoked": False,
    }


STRANGER, VIEWER = Caller("", "anyone"), Caller("me", "viewer")


class Desk:
    async def check_invite(self, token: str) -> None:
        if token != "right":
            raise JoinRefused("this run has no such invite")

    def check_member(self, proof: str, path: str) -> PeerId:
        if (proof, path) != ("proof", "/here"):
            raise JoinRefused("not a member")
        return PeerId("me")


@pytest.mark.parametrize(
    ("caller", "authorization", "may"),
    [
        (STRANGER, "Invite right", True),
        (STRANGER, "invite right", True),
        (STRANGER, "Invite wrong", False),
        (STRANGER, "Bearer right", False),
        (STRANGER, "", False),
        (VIEWER, "Bearer x", True),
        (VIEWER, "", True),
        (VIEWER, "Invite wrong", False),
    ],
)
async def test_invite_or_token_is_accepted(caller: Caller, authorization: str, may: bool) -> None:
    desk = cast(JoinDesk, Desk())
    if may:
        await check_invited(desk, caller, "POST", {"Authorization": authorization})
    else:
        with pytest.raises(JoinRefused):
            await check_invited(desk, caller, "POST", {"Authorization": authorization})


async def test_cross_site_speed_test_is_refused() -> None:
    headers = {"Host": "127.0.0.1:1", "Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    with pytest.raises(NotAllowed):
        await check_invited(cast(JoinDesk, Desk()), VIEWER, "POST", headers)


def test_proof_names_a_member_and_other_headers_name_none() -> None:
    desk = cast(JoinDesk, Desk())
    assert member_in(desk, "/here", {"Authorization": "Member proof"}) == "me"
    assert member_in(desk, "/here", {"Authorization": "Invite right"}) is None
    assert member_in(desk, "/here", {}) is None
    with pytest.raises(JoinRefused):
        member_in(desk, "/there", {"Authorization": "member proof"})


def test_an_invite_admits_five_machines_wherever_no_quota_is_named() -> None:
    """A thousand new identities, as before, would be a thousand new chances after a ban."""
    named = [NewInvite().quota, JoinConfig().peers_max, signature(make).parameters["quota"].default]
    form = Path(coordinator.__file__).parent / "pages" / "invites.js"
    assert named == [QUOTA_DEFAULT] * 3 == [5] * 3
    assert 'useState({ quota: "5"' in form.read_text()
