// What can be done to workers: the buttons, and the dialog that says what would follow before it is done.
import { html, useState } from "/web/vendor/htm-preact.js";
import { post } from "/web/api.js";
import { plural } from "/web/format.js";
import { Button, Dialog, Field, Menu, Problem, toast } from "/web/parts.js";
import { Preview, usePreview } from "./preview.js";
import { askToSignIn } from "./session.js";

const NAMES_SHOWN = 12;

/** Words of each act: of its button, of what was done, and what it means. */
export const ACTS = {
  drain: { verb: "Drain", done: "drained", icon: "pause", means: "No new work is given out. What is held is finished, and its relay children are handed over; it stays connected until it is enabled." },
  enable: { verb: "Enable", done: "enabled", icon: "play", means: "Undoes drain, ban and quarantine: work is given out again." },
  ban: { verb: "Ban", done: "banned", icon: "stop", danger: true, means: "Its leases are revoked and given to others, its session is closed, and it cannot join again until it is enabled." },
  pin_on: { verb: "Pin on", done: "pinned on", means: "The planner keeps it on, whatever it costs." },
  pin_off: { verb: "Pin off", done: "pinned off", means: "The planner keeps it on standby, whatever it brings." },
  pin_auto: { verb: "Leave to the planner", done: "left to the planner", means: "The planner switches it on and off." },
};

/** Buttons of the acts. onAct(act); who may not act is asked to sign in. */
export function ActButtons({ canAct, onAct }) {
  const press = (act) => (canAct ? onAct(act) : askToSignIn("Acts need an operator's token."));
  const button = (act) => html`<${Button} icon=${ACTS[act].icon} kind=${ACTS[act].danger ? "danger" : ""} onClick=${() => press(act)}>${ACTS[act].verb}<//>`;
  const item = (act) => ({ label: ACTS[act].verb, onClick: () => press(act) });
  return html`<span class="act-buttons">${button("drain")}${button("enable")}${button("ban")}
    <${Menu} label="Pin" icon="down" items=${["pin_on", "pin_off", "pin_auto"].map(item)} /></span>`;
}

/** Asks, with the planner's preview, then acts. peers: workers; onDone(ids) after it was done to any. */
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
    <${Field} label="Reason" hint="Kept in the audit log; also shown beside the worker when it is drained or banned." maxlength="200" value=${reason} onInput=${setReason} />
    <${Problem} error=${state.error} />
    ${state.failed.length > 0 && html`<${Failed} failed=${state.failed} />`}
  <//>`;
}

const Failed = ({ failed }) => html`<div class="problem" role="alert"><div><p class="problem-what">${plural(failed.length, "worker")} left as it was:</p>
  <ul>${failed.map((one) => html`<li key=${one.peer}>${one.peer.slice(-12)}: ${one.error}</li>`)}</ul></div></div>`;
