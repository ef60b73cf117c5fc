// Acts on workers: the buttons, and the dialog that shows a preview before the act is performed.
import { html, useState } from "/web/vendor/htm-preact.js";
import { post } from "/web/api.js";
import { plural } from "/web/format.js";
import { Button, Dialog, Field, Menu, Problem, toast } from "/web/parts.js";
import { Preview, usePreview } from "./preview.js";
import { askToSignIn } from "./session.js";

const NAMES_SHOWN = 12;

/** Texts of each act: its button, its outcome, and its consequences. */
export const ACTS = {
  drain: { verb: "Drain", done: "drained", icon: "pause", means: "It gets no new work, finishes the work it holds, and hands over its relay children. It stays connected until you enable it." },
  enable: { verb: "Enable", done: "enabled", icon: "play", means: "It gets work again after a drain, a ban or a quarantine." },
  ban: { verb: "Ban", done: "banned", icon: "stop", danger: true, means: "Its leases are revoked and given to other workers, its session is closed, and it cannot rejoin until you enable it." },
  pin_on: { verb: "Pin on", done: "pinned on", means: "The planner keeps it on whatever it costs." },
  pin_off: { verb: "Pin off", done: "pinned off", means: "The planner keeps it on standby whatever it contributes." },
  pin_auto: { verb: "Leave to the planner", done: "left to the planner", means: "The planner decides again when it is on." },
};

/** Buttons of the acts. onAct(act); readers without the role are asked to sign in. */
export function ActButtons({ canAct, onAct }) {
  const press = (act) => (canAct ? onAct(act) : askToSignIn("Acting on workers requires an operator's token."));
  const button = (act) => html`<${Button} icon=${ACTS[act].icon} kind=${ACTS[act].danger ? "danger" : ""} onClick=${() => press(act)}>${ACTS[act].verb}<//>`;
  const item = (act) => ({ label: ACTS[act].verb, onClick: () => press(act) });
  return html`<span class="act-buttons">${button("drain")}${button("enable")}${button("ban")}
    <${Menu} label="Pin" icon="down" items=${["pin_on", "pin_off", "pin_auto"].map(item)} /></span>`;
}

/** Shows the planner's preview, asks for confirmation, then acts. peers: workers; onDone(ids) if it succeeded for any. */
export function ActDialog({ act, peers, onClose, onDone }) {
  const { verb, means, danger } = ACTS[act];
  const [reason, setReason] = useState("");
  const [state, setState] = useState({ busy: false, error: null, failed: [] });
  const ids = peers.map((one) => one.peer_id);
  const preview = usePreview({ act, peers: ids });
  const perform = async () => {
    setState({ busy: true, error: null, failed: [] });
    try {
      const { done, failed } = await post("/api/v1/acts/peers", { act, peers: ids, reason: reason.trim() });
      if (done.length) {
        toast(`${plural(done.length, "worker")} ${ACTS[act].done}`, { tone: "good" });
        onDone(done);
      }
      if (failed.length) setState({ busy: false, error: null, failed });
      else onClose();
    } catch (error) {
      setState({ busy: false, error, failed: [] });
    }
  };
  const title = `${verb} ${peers.length === 1 ? peers[0].name : plural(peers.length, "worker")}?`;
  const footer = html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind=${danger ? "danger" : "primary"} busy=${state.busy} onClick=${perform}>${verb} ${peers.length === 1 ? "it" : plural(peers.length, "worker")}<//>`;
  return html`<${Dialog} open title=${title} onClose=${onClose} footer=${footer} wide>
    <p>${means}</p>
    ${peers.length > 1 && html`<p class="name-list">${peers.slice(0, NAMES_SHOWN).map((one) => html`<span class="badge" key=${one.peer_id}>${one.name}</span>`)}
      ${peers.length > NAMES_SHOWN && html`<span class="muted">and ${plural(peers.length - NAMES_SHOWN, "other")}</span>`}</p>`}
    <${Preview} ...${preview} />
    <${Field} label="Reason" hint="Kept in the audit log, and shown with the worker if it is drained or banned." maxlength="200" value=${reason} onInput=${setReason} />
    <${Problem} error=${state.error} />
    ${state.failed.length > 0 && html`<${Failed} failed=${state.failed} />`}
  <//>`;
}

const Failed = ({ failed }) => html`<div class="problem" role="alert"><div><p class="problem-what">The act failed for ${plural(failed.length, "worker")}:</p>
  <ul>${failed.map((one) => html`<li key=${one.peer}>${one.peer.slice(-12)}: ${one.error}</li>`)}</ul></div></div>`;
