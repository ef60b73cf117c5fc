// Invites: one line for a donor that contains the run's address, its keys and the right to join.
import { html, useState } from "/web/vendor/htm-preact.js";
import { post, useGet } from "/web/api.js";
import { clock, count, duration, plural } from "/web/format.js";
import { Badge, Button, Card, Dialog, Empty, Field, PageHead, Problem, Select, toast } from "/web/parts.js";
import { useNow } from "/web/store.js";
import { askToSignIn, useMay } from "./session.js";
import { ReputationCard } from "./reputation.js";
import { OneLine, Revoke } from "./settings.js";

const DAY_S = 86_400;
const LIFETIMES = [[3600, "in an hour"], [DAY_S, "in a day"], [7 * DAY_S, "in 7 days"], [30 * DAY_S, "in 30 days"], [90 * DAY_S, "in 90 days"]];

/** open, used up, ended, revoked or banned. */
export function fateOf(invite, nowS) {
  if (invite.revoked) return invite.banned ? "banned" : "revoked";
  if (invite.used >= invite.quota) return "used up";
  return invite.expires_unix_s <= nowS ? "ended" : "open";
}

/** Whether an invite names its coordinator by a loopback address, which no other machine reaches. */
function isLoopback(invite) {
  try {
    const text = atob(invite.replace(/^rollcast1-/, "").replaceAll("-", "+").replaceAll("_", "/"));
    return /^(127\.|localhost|\[::1\])/.test(JSON.parse(text).grpc_address);
  } catch {
    return false;
  }
}

export function Page() {
  const { data, error, reload } = useGet("/api/v1/invites");
  const found = useGet("/api/v1/reputations");
  const cards = new Map((found.data?.invites || []).map((one) => [one.id, one]));
  return html`<${PageHead} title="Invites" note="Each invite is one line that a donor runs." />
    <div class="stack"><${Make} onMade=${reload} /><${Made} invites=${data ? data.invites : null} error=${error} reload=${reload} cards=${cards} /></div>`;
}

function Make({ onMade }) {
  const canAct = useMay("operator");
  const [form, setForm] = useState({ quota: "5", lifetime: String(7 * DAY_S), note: "" });
  const [state, setState] = useState({ busy: false, error: null, made: null });
  const quota = Number(form.quota), isWrong = !Number.isInteger(quota) || quota < 1 || quota > 10_000;
  const make = async (event) => {
    event.preventDefault();
    if (!canAct) return askToSignIn("Creating an invite requires an operator's token.");
    setState({ busy: true, error: null, made: null });
    try {
      const made = await post("/api/v1/invites", { role: "peer", quota, lifetime_s: Number(form.lifetime), note: form.note.trim() });
      setState({ busy: false, error: null, made });
      onMade();
    } catch (caught) {
      setState({ busy: false, error: caught, made: null });
    }
  };
  return html`<${Card} title="New invite">
    <form class="invite-form" onSubmit=${make}>
      <${Field} label="Machines" inputmode="numeric" autocomplete="off" error=${isWrong ? "Enter a whole number from 1 to 10,000." : ""} value=${form.quota} onInput=${(text) => setForm({ ...form, quota: text })} />
      <${Select} label="Expires" value=${form.lifetime} options=${LIFETIMES.map(([seconds, text]) => [String(seconds), text])} onChange=${(text) => setForm({ ...form, lifetime: text })} />
      <${Field} label="Note" placeholder="recipient" maxlength="120" autocomplete="off" value=${form.note} onInput=${(text) => setForm({ ...form, note: text })} />
      <${Button} type="submit" kind="primary" icon="plus" busy=${state.busy} disabled=${isWrong}>Create invite<//>
    </form>
    <${Problem} error=${state.error} />
    ${state.made && html`<div class="invite-made" role="status"><p><b>Give this line to the donor.</b> <span class="muted">It is shown only once. ${plural(quota, "machine")} can join with it until ${clock(state.made.expires_unix_s)}; anyone who has it can use it.</span></p>
      <${OneLine} text=${state.made.command} label="The donor's command" />
      ${isLoopback(state.made.invite) && html`<p><b>Only the coordinator's machine can use it,</b> because the coordinator listens on loopback. For machines elsewhere set serve.host and serve.advertise_host.</p>`}</div>`}
  <//>`;
}

function Made({ invites, error, reload, cards }) {
  const now = useNow(10_000) / 1000;
  const canAct = useMay("operator");
  const [leaving, setLeaving] = useState(null);
  const [acting, setActing] = useState(null);
  const act = (name, invite) => (canAct ? setActing({ name, invite }) : askToSignIn("Acting on invites requires an operator's token."));
  return html`<${Card} title="Invites" note=${invites ? `${count(invites.filter((one) => fateOf(one, now) === "open").length)} open` : ""} flush>
    ${error && html`<${Problem} error=${error} retry=${reload} />`}
    ${!invites && !error && html`<${Empty} title="Reading the invites…" icon="invites" />`}
    ${invites && !invites.length && html`<${Empty} title="No invites yet" icon="invites">Create one above. When the donor runs its line, the machine appears under Workers.<//>`}
    ${invites?.length > 0 && html`<ul class="invite-list">${invites.map((one) => html`<${Line} key=${one.id} invite=${one} card=${cards.get(one.id)} now=${now} onRevoke=${() => setLeaving(one)} onAct=${(name) => act(name, one)} />`)}</ul>`}
    ${leaving && html`<${Revoke} what=${leaving.note ? `the invite “${leaving.note}”` : "this invite"} path=${`/api/v1/invites/${leaving.id}/revoke`} onClose=${() => setLeaving(null)} onDone=${reload}
      text="No more machines can join with it. Machines that have joined stay; ban the invite to disconnect them." />`}
    ${acting && html`<${Act} ...${acting} onClose=${() => setActing(null)} onDone=${reload} />`}
  <//>`;
}

/** Texts of the acts on all machines of an invite: the button, the outcome, and the consequences. */
const ACTS = {
  ban: { verb: "Ban", done: "banned", means: "No more machines can join with it. Those that have joined are disconnected: their leases are revoked and given to other workers, their sessions are closed, and they cannot rejoin until you enable them." },
  enable: { verb: "Enable", done: "enabled", means: "Its machines get work again after a ban or a quarantine. The invite itself stays revoked: for further machines, create another one." },
};

function Act({ name, invite, onClose, onDone }) {
  const { verb, done, means } = ACTS[name];
  const [reason, setReason] = useState("");
  const [state, setState] = useState({ busy: false, error: null });
  const perform = async () => {
    setState({ busy: true, error: null });
    try {
      const answer = await post(`/api/v1/invites/${invite.id}/${name}`, { reason: reason.trim() });
      toast(`${plural(answer.done.length, "machine")} ${done}`, { tone: "good" });
      onDone();
      onClose();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  const footer = html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind=${name === "ban" ? "danger" : "primary"} busy=${state.busy} onClick=${perform}>${verb} ${plural(invite.used, "machine")}<//>`;
  return html`<${Dialog} open title=${`${verb} everyone with the invite “${invite.note || invite.id}”?`} onClose=${onClose} footer=${footer}>
    <p>${means}</p><${Field} label="Reason" hint="Kept in the audit log, and shown to the donors." maxlength="200" value=${reason} onInput=${setReason} /><${Problem} error=${state.error} /><//>`;
}

const TONES = { open: "good", "used up": "", ended: "", revoked: "bad", banned: "bad" };

function Line({ invite, card, now, onRevoke, onAct }) {
  const fate = fateOf(invite, now), name = invite.note || invite.id, hasPeers = invite.role === "peer" && invite.used > 0;
  const ends = fate === "open" ? `expires in ${duration(invite.expires_unix_s - now)}` : `${invite.expires_unix_s <= now ? "expired" : "expires"} ${clock(invite.expires_unix_s)}`;
  return html`<li><${Badge} tone=${TONES[fate]}>${fate}<//><span class="invite-note"><b>${invite.note || "no note"}</b> <span class="muted">${invite.role !== "peer" ? `${invite.role}, ` : ""}${ends}</span></span>
    <span class="invite-used">${count(invite.used)} of ${plural(invite.quota, "machine")}</span>
    <span class="act-buttons">${fate === "open" && html`<${Button} onClick=${onRevoke} aria-label=${`Revoke ${name}`}>Revoke<//>`}
      ${hasPeers && fate === "banned" && html`<${Button} onClick=${() => onAct("enable")} aria-label=${`Enable ${name}`}>Enable<//>`}
      ${hasPeers && fate !== "banned" && html`<${Button} kind="danger" onClick=${() => onAct("ban")} aria-label=${`Ban ${name}`}>Ban<//>`}</span>
    ${card && html`<details class="invite-card"><summary>Reputation: ${card.state}</summary><${ReputationCard} card=${card} title="Everyone with this invite" /></details>`}</li>`;
}
