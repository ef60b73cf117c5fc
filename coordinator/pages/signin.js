// The dialog that takes a token.
import { html, useEffect, useRef, useState } from "/web/vendor/htm-preact.js";
import { get, setToken } from "/web/api.js";
import { useStore } from "/web/store.js";
import { Button, Dialog, Field, toast } from "/web/parts.js";
import { session, signIn } from "./session.js";

export function SignIn() {
  const { open, reason } = useStore(signIn);
  const [value, setValue] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const form = useRef(null);
  useEffect(() => { if (open) form.current?.querySelector("input")?.focus(); }, [open]);
  const close = () => {
    signIn.set({ open: false, reason: "" });
    setValue("");
    setError("");
  };
  const submit = async (event) => {
    event.preventDefault();
    const given = value.trim().replace(/^.*#token=/, "");
    if (!given) return setError("Enter a token.");
    setBusy(true);
    try {
      const who = await get("/api/v1/session", { headers: { Authorization: "Bearer " + given } });
      setToken(given);
      session.set({ ...who, asked: true });
      close();
      toast("Signed in as " + who.who + " (" + who.access + ")", { tone: "good" });
    } catch (refused) {
      setError(refused.status === 401 || refused.status === 403 ? "This token is unknown, has expired or was revoked." : refused.what);
    }
    setBusy(false);
  };
  const footer = html`<${Button} onClick=${close}>Cancel<//><${Button} kind="primary" type="submit" form="sign-in" busy=${busy}>Sign in<//>`;
  return html`<${Dialog} open=${open} title="Sign in" onClose=${close} footer=${footer}>
    ${reason && html`<p>${reason}</p>`}
    <form id="sign-in" ref=${form} onSubmit=${submit}>
      <${Field} label="Token" type="password" autocomplete="off" spellcheck=${false} value=${value} onInput=${setValue} error=${error}
        hint="Enter a token, or the link that the command below prints. It is kept until you close this tab." />
    </form>
    <p class="muted small">On the coordinator's machine, <code>rollcast dashboard</code> prints a link with the run's admin key. <code>rollcast token create --role operator --name NAME</code> creates a token for another person.</p>
  <//>`;
}
