// Settings: the run's settings that can be changed while it is running, and access tokens.
import { html, useState } from "/web/vendor/htm-preact.js";
import { post, useGet } from "/web/api.js";
import { clock, known } from "/web/format.js";
import { Badge, Button, Card, CopyButton, Dialog, Empty, Field, PageHead, Problem, Select, toast } from "/web/parts.js";
import { useTopic } from "/web/stream.js";
import { RunActs } from "./run_acts.js";
import { useMay } from "./session.js";
import { SettingsForm } from "./settings_form.js";

const NAME = /^[a-z0-9][a-z0-9._-]{0,63}$/;
const ROLES = [["viewer", "viewer: can read everything"], ["operator", "operator: can act on workers and the run"], ["admin", "admin: can also create tokens"]];

export function Page() {
  const isAdmin = useMay("admin"), overview = useTopic("overview");
  return html`<${PageHead} title="Settings" note="They apply to this run at once and survive a restart." />
    <div class="stack">
      <${Card} title="The run" actions=${html`<${RunActs} phase=${overview?.phase} />`}><${SettingsForm} /><//>
      ${isAdmin && html`<${Tokens} />`}
    </div>`;
}

function Tokens() {
  const { data, error, reload } = useGet("/api/v1/tokens");
  const [isMaking, setMaking] = useState(false);
  const [leaving, setLeaving] = useState(null);
  const actions = html`<${Button} icon="plus" onClick=${() => setMaking(true)}>New token<//>`;
  const tokens = data ? data.tokens : [];
  return html`<${Card} title="Tokens" note="access for people and programs" actions=${actions} flush>
    ${error && html`<${Problem} error=${error} retry=${reload} />`}
    ${data && !tokens.length && html`<${Empty} title="No tokens yet">You are signed in with the run's admin key. Create a token for anyone else who needs access.<//>`}
    ${tokens.length > 0 && html`<div class="scroll-x" tabindex="0" role="group" aria-label="Tokens"><table><thead><tr><th scope="col">Name</th><th scope="col">Role</th><th scope="col">Created</th><th scope="col">Expires</th><th scope="col"><span class="hidden">Acts</span></th></tr></thead>
      <tbody>${tokens.map((one) => html`<tr key=${one.id}><td>${one.name}</td><td>${one.access}</td><td>${clock(one.made_unix_s)}</td><td>${known(one.expires_unix_s) ? clock(one.expires_unix_s) : "never"}</td>
        <td class="num">${one.holds ? html`<${Button} onClick=${() => setLeaving(one)} aria-label=${`Revoke ${one.name}`}>Revoke<//>` : html`<${Badge}>${known(one.revoked_unix_s) ? "revoked" : "expired"}<//>`}</td></tr>`)}</tbody></table></div>`}
    ${isMaking && html`<${NewToken} onClose=${() => setMaking(false)} onMade=${reload} />`}
    ${leaving && html`<${Revoke} what=${`the token of ${leaving.name}`} path=${`/api/v1/tokens/${leaving.id}/revoke`} text="Anyone who uses it loses access at once." onClose=${() => setLeaving(null)} onDone=${reload} />`}
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
    : html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" busy=${state.busy} disabled=${!form.name.trim() || isWrong} onClick=${make}>Create token<//>`;
  return html`<${Dialog} open title="New token" onClose=${onClose} footer=${footer}>
    ${state.made ? html`<p>Copy the token now: it is shown only once.</p><${OneLine} text=${state.made.token} label="The token" />`
      : html`<${Field} label="Name" hint="The person or program that uses it, for the audit log." error=${isWrong ? "Use lower-case letters, digits, dots and dashes, and begin with a letter or a digit." : ""} maxlength="64" autocomplete="off" value=${form.name} onInput=${(name) => setForm({ ...form, name })} />
        <${Select} label="Role" value=${form.access} options=${ROLES} onChange=${(access) => setForm({ ...form, access })} />
        <${Select} label="Expires" value=${form.days} options=${[["7", "in 7 days"], ["30", "in 30 days"], ["90", "in 90 days"], ["365", "in a year"], ["", "never"]]} onChange=${(days) => setForm({ ...form, days })} />`}
    <${Problem} error=${state.error} />
  <//>`;
}

/** One line to copy, shown in full. */
export function OneLine({ text, label }) {
  return html`<div class="one-line"><code tabindex="0" role="textbox" aria-readonly="true" aria-label=${label}>${text}</code><${CopyButton} text=${text} kind="primary">Copy<//></div>`;
}

/** Asks for confirmation before a token or invite is revoked. */
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
