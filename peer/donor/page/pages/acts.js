// What the owner does: the same commands as on the command line.
import { html, useState } from "/web/vendor/htm-preact.js";
import { ApiError, headers, post } from "/web/api.js";
import { Button, Dialog, Field, Menu, Problem, toast, toastError } from "/web/parts.js";
import { secondsOf, sentence } from "./words.js";

const TIMES = [["15 minutes", 900], ["2 hours", 7200], ["8 hours", 28800]];

/** Sends an act; its answer, or null where it failed, which is said. */
export async function act(body) {
  try {
    const answer = await post("/api/v1/acts", body);
    if (answer.state) toast(answer.reason ? sentence(answer.reason) : "At work", { tone: "good" });
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
  const title = verb === "pause" ? "Pause for a while" : "Finish what is held, then pause";
  const footer = html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" disabled=${!seconds} onClick=${send}>${verb === "pause" ? "Pause" : "Finish"}<//>`;
  return html`<${Dialog} open title=${title} onClose=${onClose} footer=${footer}>
    <form onSubmit=${send}><${Field} label="How long" value=${text} onInput=${setText} hint="As 90s, 15m, 2h or 1d. It works again by itself after that." error=${text && !seconds ? "Write a number and s, m, h or d" : ""} autofocus /></form>
  <//>`;
}

function Leave({ onClose }) {
  const leave = async () => { if (await act({ do: "leave" })) onClose(); };
  const footer = html`<${Button} onClick=${onClose}>Stay<//><${Button} kind="danger" onClick=${leave}>Leave the run<//>`;
  return html`<${Dialog} open title="Take this machine out of the run?" onClose=${onClose} footer=${footer}>
    <p>It completes what it holds, says goodbye and stops. Then the versions, the certificate and the log that it kept here are removed.</p>
    <p>Its identity, receipts and configuration stay: with a new invite, <code>rollcast peer join</code> makes it the same machine again.</p>
    <p class="muted">A service that was set up for it is left as it is: <code>rollcast peer leave</code> removes that too. Until it has stopped, Resume takes this back.</p>
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
  const footer = html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" busy=${busy} onClick=${make}>${busy ? "Packing up" : "Save the archive"}<//>`;
  return html`<${Dialog} open title="Bug report" onClose=${onClose} footer=${footer}>
    <p>An archive of plain text with what this machine is, does, was told and wrote down. No keys, invites, tokens, prompts, rollouts or weights are in it.</p>
    <p>Nothing is sent anywhere. Look through it, then send it along with your question.</p>
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
