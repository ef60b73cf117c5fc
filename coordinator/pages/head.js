// The line above every page: the run, its progress, whether it is healthy, and whether the figures are live.
import { html } from "/web/vendor/htm-preact.js";
import { Badge, Button, Icon, Meter } from "/web/parts.js";
import { count, duration, percent } from "/web/format.js";
import { connection, reconnect } from "/web/stream.js";
import { useNow, useStore } from "/web/store.js";
import { href } from "/web/router.js";
import { askToSignIn } from "./session.js";

const PHASE_TONE = { training: "accent", finished: "good", stopped: "warn", starting: "", paused: "warn", finishing: "accent" };
const LATE_MS = 3_500; // the stream has one message per second

export const ended = (overview) => Boolean(overview && (overview.phase === "finished" || overview.phase === "stopped"));

/** Whether the run is healthy or what it waits for, in one sentence; "" without a view. */
export function sentence(overview) {
  const waiting = overview?.waiting;
  if (!waiting) return "";
  if (waiting.sentence) return waiting.sentence;
  return waiting.for ? "Waiting for " + waiting.for + "." : "";
}

/** The first of the sentences: whether all is well. */
const first = (text) => text.split(/(?<=\.) /)[0];

/** Args: overview: the newest view, null before the first; onMenu: opens the navigation on narrow screens. */
export function Head({ overview, onMenu, onOverview }) {
  const share = overview?.steps ? overview.step / overview.steps : 0;
  return html`<header class="head">
    <${Button} icon="menu" className="head-menu" aria-label="Open the navigation" onClick=${onMenu} />
    <div class="head-run">
      <a class="head-name" href=${href("overview")}>${overview?.run_name || "…"}</a>
      ${overview && html`<${Badge} tone=${PHASE_TONE[overview.phase]}>${overview.phase}<//>`}
      ${overview?.steps > 0 && html`<span class="head-step" title="${percent(share, 1)} of the run's steps">
        <span class="nowrap">step <b>${count(overview.step)}</b> of ${count(overview.steps)}</span><${Meter} value=${share} label="Learner steps done" /></span>`}
    </div>
    ${!onOverview && html`<p class="head-sentence" title=${sentence(overview)}>${first(sentence(overview))}</p>`}
    <${Connection} overview=${overview} />
  </header>`;
}

function Connection({ overview }) {
  const { name, lastMs } = useStore(connection);
  const now = useNow();
  const late = name === "live" && now - lastMs > LATE_MS;
  const [tone, text] = name === "live" && !late ? ["good", "live"]
    : ended(overview) ? ["idle", "ended"]
      : name === "refused" ? ["warn", "not signed in"]
        : lastMs ? ["warn", "reconnecting"] : ["idle", "connecting"];
  return html`<span class="head-link state ${tone}" role="status">${text}</span>`;
}

/** The notice across the page if the figures are old or access is refused. */
export function Notice({ overview }) {
  const { name, lastMs, error } = useStore(connection);
  const now = useNow();
  if (name === "refused") {
    return html`<div class="notice" role="alert"><${Icon} name="key" /><p>${error?.what || "Reading this run requires a token."}</p><${Button} onClick=${() => askToSignIn()}>Sign in<//></div>`;
  }
  const silentMs = now - lastMs;
  if (!lastMs || (name === "live" && silentMs < LATE_MS) || silentMs < LATE_MS) return null;
  if (ended(overview)) {
    return html`<div class="notice quiet" role="status"><${Icon} name="info" /><p>The run is ${overview.phase} and its coordinator has stopped. These are its last figures.</p></div>`;
  }
  return html`<div class="notice" role="alert"><${Icon} name="warning" /><p>The coordinator has not answered<span aria-hidden="true"> for ${duration(Math.round(silentMs / 1000))}</span>. Trying to reconnect. The figures below are out of date.</p><${Button} onClick=${reconnect}>Try now<//></div>`;
}
