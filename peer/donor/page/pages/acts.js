// The owner's acts, the same as on the command line.
import { html, useState } from "/web/vendor/htm-preact.js";
import { ApiError, headers, post } from "/web/api.js";
import { Button, Dialog, Field, Menu, Problem, toast, toastError } from "/web/parts.js";
import { secondsOf, sentence } from "./words.js";

const TIMES = [["15 minutes", 900], ["2 hours", 7200], ["8 hours", 28800]];

/** Sends an act and returns its answer, or null after showing why it failed. */
export async function act(body) {
  try {
    const answer = await post("/api/v1/acts", body);
    if (answer.state) toast(answer.reason ? sentence(answer.reason) : "Working", { tone: "good" });
    return answer;
  } catch (error) {
    toastError(error);
    return null;
  }
}

function OtherTime({ verb, onClose }) {
  const [text, setText] = useState("");
  const seconds = secondsOf(text);
  const send = async (event) => {
    event.preventDefault();
    if (seconds && await act({ do: verb, for_s: seconds })) onClose();
  };
  const title = verb === "pause" ? "Pause for a while" : "Finish the current work, then pause";
  const footer = html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" disabled=${!seconds} onClick=${send}>${verb === "pause" ? "Pause" : "Finish"}<//>`;
  return html`<${Dialog} open title=${title} onClose=${onClose} footer=${footer}>
    <form onSubmit=${send}><${Field} label="How long" value=${text} onInput=${setText} hint="For example 90s, 15m, 2h or 1d. It resumes by itself afterwards." error=${text && !seconds ? "Enter a number and s, m, h or d" : ""} autofocus /></form>
  <//>`;
}

function Leave({ onClose }) {
  const leave = async () => { if (await act({ do: "leave" })) onClose(); };
  const footer = html`<${Button} onClick=${onClose}>Stay<//><${Button} kind="danger" onClick=${leave}>Leave the run<//>`;
  return html`<${Dialog} open title="Leave the run with this machine?" onClose=${onClose} footer=${footer}>
    <p>It finishes its work, signs off from the coordinator and stops. Then its versions, certificate and log are removed from this machine.</p>
    <p>Its identity, receipts, limits and configuration stay: after <code>rollcast peer join</code> with a new invite it is the same machine.</p>
    <p class="muted">An installed service stays; <code>rollcast peer leave</code> removes it too. Until the peer has stopped, Resume cancels this.</p>
  <//>`;
}

function BugReport({ onClose }) {
  const [busy, setBusy] = useState(false), [error, setError] = useState(null);
  const make = async () => {
    setBusy(true);
    setError(null);
    try {
      await download("/api/v1/bugreport");
      onClose();
    } catch (caught) {
      setError(caught);
    }
    setBusy(false);
  };
  const footer = html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" busy=${busy} onClick=${make}>${busy ? "Collecting" : "Save the archive"}<//>`;
  return html`<${Dialog} open title="Bug report" onClose=${onClose} footer=${footer}>
    <p>The archive holds plain text about this machine's hardware, state, configuration and log. It has no keys, invites, tokens, prompts, rollouts or weights.</p>
    <p>Nothing is sent anywhere. Look through the archive, then attach it to your question.</p>
    <${Problem} error=${error} />
  <//>`;
}

async function download(path) {
  const response = await fetch(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: "{}", credentials: "omit" });
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => ({})));
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") || "")?.[1] || "rollcast-bugreport.tar.gz";
  const address = URL.createObjectURL(await response.blob());
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  URL.revokeObjectURL(address);
  toast(`${name} is saved`, { tone: "good" });
}

const timed = (verb, onOther) => [
  ...TIMES.map(([label, seconds]) => ({ label: "For " + label, onClick: () => act({ do: verb, for_s: seconds }) })),
  { label: "For another time…", onClick: onOther },
];

export function Acts({ report }) {
  const [open, setOpen] = useState("");
  const close = () => setOpen("");
  const paused = report.state === "paused", finishing = report.state === "finishing" || report.state === "draining";
  const pauses = [{ label: "Until I resume", onClick: () => act({ do: "pause" }) }, null, ...timed("pause", () => setOpen("pause"))];
  const finishes = [{ label: "Then stop", note: "ends the peer", onClick: () => act({ do: "finish" }) }, null, ...timed("finish", () => setOpen("finish")).map((item) => ({ ...item, label: item.label.replace("For", "Then pause for") }))];
  const more = [{ label: "Bug report…", icon: "info", onClick: () => setOpen("bugreport") }, null, { label: "Leave the run…", icon: "out", danger: true, onClick: () => setOpen("leave") }];
  return html`
    ${paused || finishing
      ? html`<${Button} kind="primary" icon="play" onClick=${() => act({ do: "resume" })}>Resume<//>`
      : html`<${Menu} label="Pause" icon="pause" items=${pauses} />`}
    ${!paused && !finishing && html`<span class="wide-only"><${Menu} label="Finish" icon="stop" items=${finishes} /></span>`}
    <${Menu} label="More" hideLabel items=${paused || finishing ? more : [{ ...finishes[0], label: "Finish, then stop", icon: "stop", note: "" }, { label: "Finish, then pause for…", icon: "pause", onClick: () => setOpen("finish") }, ...more]} />
    ${(open === "pause" || open === "finish") && html`<${OtherTime} verb=${open} onClose=${close} />`}
    ${open === "leave" && html`<${Leave} onClose=${close} />`}
    ${open === "bugreport" && html`<${BugReport} onClose=${close} />`}`;
}
