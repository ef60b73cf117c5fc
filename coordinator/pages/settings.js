// Settings: what of the run can be changed while it goes on, and who holds tokens.
import { html, useState } from "/web/vendor/htm-preact.js";
import { post, useGet } from "/web/api.js";
import { clock, known } from "/web/format.js";
import { Badge, Button, Card, CopyButton, Dialog, Empty, Field, PageHead, Problem, Select, toast } from "/web/parts.js";
import { useMay } from "./session.js";
import { SettingsForm } from "./settings_form.js";

const NAME = /^[a-z0-9][a-z0-9._-]{0,63}$/;
const ROLES = [["viewer", "viewer: reads everything"], ["operator", "operator: acts on workers and the run"], ["admin", "admin: makes tokens too"]];

export function Page() {
  const isAdmin = useMay("admin");
  return html`<${PageHead} title="Settings" note="for this run, from now on; kept over a restart" />
    <div class="stack">
      <${Card} title="The run"><${SettingsForm} /><//>
      ${isAdmin && html`<${Tokens} />`}
    </div>`;
}

function Tokens() {
  const { data, error, reload } = useGet("/api/v1/tokens");
  const [isMaking, setMaking] = useState(false);
  const [leaving, setLeaving] = useState(null);
  const actions = html`<${Button} icon="plus" onClick=${() => setMaking(true)}>New token<//>`;
  const tokens = data ? data.tokens : [];
  return html`<${Card} title="Tokens" note="who may read and act from elsewhere" actions=${actions} flush>
    ${error && html`<${Problem} error=${error} retry=${reload} />`}
    ${data && !tokens.length && html`<${Empty} title="No tokens yet">You are signed in with the run's admin key. Create a token for anyone else who needs access.<//>`}
    ${tokens.length > 0 && html`<div class="scroll-x" tabindex="0" role="group" aria-label="Tokens"><table><thead><tr><th scope="col">Name</th><th scope="col">Role</th><th scope="col">Made</th><th scope="col">Ends</th><th scope="col"><span class="hidden">Acts</span></th></tr></thead>
      <tbody>${tokens.map((one) => html`<tr key=${one.id}><td>${one.name}</td><td>${one.access}</td><td>${clock(one.made_unix_s)}</td><td>${known(one.expires_unix_s) ? clock(one.expires_unix_s) : "never"}</td>
        <td class="num">${one.holds ? html`<${Button} onClick=${() => setLeaving(one)} aria-label=${`Revoke ${one.name}`}>Revoke<//>` : html`<${Badge}>${known(one.revoked_unix_s) ? "revoked" : "ended"}<//>`}</td></tr>`)}</tbody></table></div>`}
    ${isMaking && html`<${NewToken} onClose=${() => setMaking(false)} onMade=${reload} />`}
    ${leaving && html`<${Revoke} what=${`the token of ${leaving.name}`} path=${`/api/v1/tokens/${leaving.id}/revoke`} text="Whoever holds it is signed out at once." onClose=${() => setLeaving(null)} onDone=${reload} />`}
  <//>`;
}

function NewToken({ onClose, onMade }) {
  const [form, setForm] = useState({ name: "", access: "viewer", days: "90" });
  const [state, setState] = useState({ busy: false, error: null, made: null });
  const isWrong = form.name.trim() !== "" && !NAME.test(form.name.trim());
  const make = async () => {
    setState({ busy: true, error: null, made: null });
    try {
      const made = await post("/api/v1/tokens", { name: form.name.trim(), access: form.access, days: form.days ? Number(form.days) : null });
      setState({ busy: false, error: null, made });
      onMade();
    } catch (error) {
      setState({ busy: false, error, made: null });
    }
  };
  const footer = state.made ? html`<${Button} kind="primary" onClick=${onClose}>Done<//>`
    : html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" busy=${state.busy} disabled=${!form.name.trim() || isWrong} onClick=${make}>Make token<//>`;
  return html`<${Dialog} open title="New token" onClose=${onClose} footer=${footer}>
    ${state.made ? html`<p>This is the only time it is shown.</p><${OneLine} text=${state.made.token} label="The token" />`
      : html`<${Field} label="Name" hint="Of a person or a program, for the audit log." error=${isWrong ? "Small letters, digits, dots, dashes; the first a letter or a digit." : ""} maxlength="64" autocomplete="off" value=${form.name} onInput=${(name) => setForm({ ...form, name })} />
        <${Select} label="Role" value=${form.access} options=${ROLES} onChange=${(access) => setForm({ ...form, access })} />
        <${Select} label="Ends" value=${form.days} options=${[["7", "in 7 days"], ["30", "in 30 days"], ["90", "in 90 days"], ["365", "in a year"], ["", "never"]]} onChange=${(days) => setForm({ ...form, days })} />`}
    <${Problem} error=${state.error} />
  <//>`;
}

/** One line to copy, whole on screen. */
export function OneLine({ text, label }) {
  return html`<div class="one-line"><code tabindex="0" role="textbox" aria-readonly="true" aria-label=${label}>${text}</code><${CopyButton} text=${text} kind="primary">Copy<//></div>`;
}

/** Asks before something is revoked. */
export function Revoke({ what, path, text, onClose, onDone }) {
  const [state, setState] = useState({ busy: false, error: null });
  const revoke = async () => {
    setState({ busy: true, error: null });
    try {
      await post(path, {});
      toast(`Revoked ${what}`, { tone: "good" });
      onDone();
      onClose();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<${Dialog} open title=${`Revoke ${what}?`} onClose=${onClose} footer=${html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind="danger" busy=${state.busy} onClick=${revoke}>Revoke<//>`}>
    <p>${text}</p><${Problem} error=${state.error} /><//>`;
}
