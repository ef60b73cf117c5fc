"""Test invites over HTTP: made once, listed without their tokens, revoked for good; and proofs of membership."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, cast

import pytest

import coordinator
from coordinator.api.invite_auth import check_invited, member_in
from coordinator.api.invites import InviteActs, InviteRoutes, NewInvite
from coordinator.config.config import JoinConfig
from coordinator.core.events.operator_events import RunFinishing
from coordinator.core.staleness.policy import StalenessRules
from coordinator.http.routes import Caller
from coordinator.join import InviteIssuer, JoinDesk, token_hash
from coordinator.ledger.saved_orders import ORDERS, OrderRecorder, Orders
from coordinator.stores.sqlite import Ledger
from rollcast.cli.live.invite import make
from rollcast.runtime.errors import JoinRefused, NotAllowed
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.run_ca import RunCA
from rollcast.wire.ids import PeerId, RunId, Step
from rollcast.wire.joining.invite import QUOTA_DEFAULT, Invite
from tests.coordinator.core_world import World, wants
from tests.coordinator.http.serving import Given, Served, served

PATH = "/api/v1/invites"

NOW = 1000.0


@dataclass(frozen=True)
class Site:
    """The invite routes of a run with a ledger and a core."""

    page: Served
    ledger: Ledger
    world: World
    orders: Orders
    desk: JoinDesk


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
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
    world, orders = World(), Orders()
    desk.banned_because = world.core.banned_because
    acts = InviteActs(world.core, OrderRecorder(world.handle, ledger, orders).give)
    routes = InviteRoutes(inviting, ledger, acts, lambda: NOW).routes()
    async with served(tmp_path / "page", Given(routes=routes)) as page:
        yield Site(page, ledger, world, orders, desk)
    await ledger.close()


@pytest.mark.parametrize("role", ["peer", "origin"])
async def test_invite_is_created_listed_and_revoked(site: Site, role: str) -> None:
    page, ledger = site.page, site.ledger
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
    assert rows[0] == ("invite", f"{role}, 2 machines, valid for 1 h", "done")
    assert made["invite"] not in str(await page.audit())
    for wrong in ({"quota": 0}, {"role": "learner"}, {"lifetime_s": 1}, {"note": "x" * 121}):
        assert (await page.post(PATH, wrong))[0] == 400
    assert (await page.post(PATH, {}, None))[0] == 401


async def test_a_store_that_does_not_answer_is_named_soon(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.api.invites.READ_DEADLINE_S", 0.05)
    monkeypatch.setattr(Ledger, "invites", lambda *_: asyncio.get_running_loop().create_future())
    status, answer = await site.page.get(PATH)
    assert (status, answer["code"]) == (503, "RC201")
    assert "to list invites" in answer["what"]


async def test_a_ban_of_an_invite_puts_all_its_identities_out_and_outlives_the_coordinator(site: Site) -> None:
    """One that never opened a session may not begin, one that works loses its leases, and no further one may join."""
    page, world = site.page, site.world
    made = (await page.post(PATH, {"quota": 9}))[1]
    hashed = token_hash(Invite.decode(made["invite"]).token)
    for name in ("a", "absent"):
        await site.ledger.claim_invite(hashed, "peer", PeerId(name), now_unix_s=NOW)
    world.start("a", "b")
    world.handle(wants("a", 2))
    banned = (await page.post(f"{PATH}/{made['id']}/ban", {"reason": "canned answers"}))[1]
    assert banned == {"done": ["a", "absent"]}
    assert world.core.state.book.held_by(PeerId("a")) == []
    assert world.core.state.members.get(PeerId("a")) is None
    assert world.core.state.members.get(PeerId("b")) is not None
    listed = (await page.get(PATH))[1]["invites"][0]
    assert (listed["revoked"], listed["banned"]) == (True, 2)
    with pytest.raises(JoinRefused, match="was revoked"):
        await site.ledger.claim_invite(hashed, "peer", PeerId("c"), now_unix_s=NOW)
    stored = Orders.from_json(await site.ledger.get_meta(ORDERS) or "{}")
    successor = World()
    for order in stored.events(StalenessRules(limit=1, publish_every_steps=1)):
        successor.handle(order)
    for core in (world.core, successor.core):
        assert core.banned_because(PeerId("absent")) == "banned with its invite by the operator: canned answers"
    assert (await page.post(f"{PATH}/{made['id']}/ban", {}))[1] == {"done": []}, "a ban is not given twice"
    enabled = (await page.post(f"{PATH}/{made['id']}/enable", {}))[1]
    assert enabled == {"done": ["a", "absent"]}
    assert world.core.banned_because(PeerId("a")) == ""
    acts = [(row.act, row.subject, row.detail) for row in await page.audit()]
    assert ("ban invite", made["id"], "canned answers") in acts


async def test_no_machine_is_invited_to_a_run_that_is_finishing(site: Site) -> None:
    made = (await site.page.post(PATH, {}))[1]
    site.world.handle(RunFinishing(Step(3)))
    status, refused = await site.page.post(PATH, {})
    assert (status, refused["code"]) == (409, "RC109")
    assert refused["cause"] == "the operator ended it after step 3"
    assert [one["id"] for one in (await site.page.get(PATH))[1]["invites"]] == [made["id"]]
    assert (await site.page.post(f"{PATH}/{made['id']}/revoke", {}))[0] == 200


async def test_only_a_known_invite_is_banned_and_the_origin_never_is(site: Site) -> None:
    made = (await site.page.post(PATH, {"role": "origin"}))[1]
    hashed = token_hash(Invite.decode(made["invite"]).token)
    await site.ledger.claim_invite(hashed, "origin", PeerId("origin"), now_unix_s=NOW)
    assert (await site.page.post(f"{PATH}/{made['id']}/ban", {}))[1] == {"done": []}
    for act in ("ban", "enable"):
        assert (await site.page.post(f"{PATH}/0123456789abcdef/{act}", {}))[1]["code"] == "RC305"


def shown(made: dict[str, Any], *, role: str) -> dict[str, Any]:
    return {
        "id": made["id"],
        "role": role,
        "quota": 2,
        "used": 1,
        "expires_unix_s": made["expires_unix_s"],
        "note": "for Ann",
        "revoked": False,
        "banned": 0,
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
