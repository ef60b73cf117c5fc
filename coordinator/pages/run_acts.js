// Acts on the run as a whole: pause, resume and finish, each with a dialog that says what follows.
import { html, useEffect, useState } from "/web/vendor/htm-preact.js";
import { post } from "/web/api.js";
import { Button, Dialog, Field, Icon, Problem, toast } from "/web/parts.js";
import { askToSignIn, useMay } from "./session.js";

const PATH = "/api/v1/acts/run";
const ACTS = {
  pause: { verb: "Pause", done: "paused", icon: "pause" },
  resume: { verb: "Resume", done: "resumed", icon: "play" },
  finish: { verb: "Finish", done: "finishing", icon: "stop", danger: true },
};

/** The buttons that fit the run's phase; none once it has ended. */
export function RunActs({ phase }) {
  const canAct = useMay("operator");
  const [act, setAct] = useState("");
  const fitting = { training: ["pause", "finish"], starting: ["pause", "finish"], paused: ["resume", "finish"] }[phase] || [];
  const press = (name) => (canAct ? setAct(name) : askToSignIn("Acting on the run requires an operator's token."));
  return html`<span class="act-buttons">${fitting.map((name) => html`<${Button} key=${name} icon=${ACTS[name].icon} kind=${ACTS[name].danger ? "danger" : ""} onClick=${() => press(name)}>${ACTS[name].verb}<//>`)}</span>
    ${act && html`<${RunActDialog} act=${act} onClose=${() => setAct("")} />`}`;
}

function RunActDialog({ act, onClose }) {
  const { verb, done, danger } = ACTS[act];
  const [reason, setReason] = useState("");
  const [preview, setPreview] = useState(null);
  const [state, setState] = useState({ busy: false, error: null });
  useEffect(() => {
    let isWanted = true;
    post(`${PATH}/preview`, { act }).then((data) => isWanted && setPreview(data), (error) => isWanted && setState({ busy: false, error }));
    return () => { isWanted = false; };
  }, [act]);
  const perform = async () => {
    setState({ busy: true, error: null });
    try {
      await post(PATH, { act, reason: reason.trim() });
      toast(`The run is ${done}`, { tone: "good" });
      onClose();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  const footer = html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind=${danger ? "danger" : "primary"} busy=${state.busy} disabled=${!preview || !preview.changes} onClick=${perform}>${verb} the run<//>`;
  return html`<${Dialog} open title=${`${verb} the run?`} onClose=${onClose} footer=${footer}>
    <div class="preview" aria-live="polite"><p class="preview-sentence">${preview ? preview.sentence : "Asking what would follow…"}</p>
      ${preview && preview.warnings.map((text) => html`<p class="preview-warning" key=${text}><${Icon} name="warning" /><span>${text}</span></p>`)}</div>
    <${Field} label="Reason" hint="Kept in the audit log, and shown on the run's page." maxlength="200" value=${reason} onInput=${setReason} />
    <${Problem} error=${state.error} />
  <//>`;
}
