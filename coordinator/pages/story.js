// The history of an object in the ledger, from /api/v1/explain.
import { html } from "/web/vendor/htm-preact.js";
import { useGet, withQuery } from "/web/api.js";
import { clock, figure, known, words } from "/web/format.js";
import { Button, Problem } from "/web/parts.js";

/** Args: of: rollout, lease, peer, version, step or event; id; newestFirst; factless: the page shows the facts itself. */
export function Story({ of, id, newestFirst, factless, title = "Story" }) {
  const { data, error, loading, reload } = useGet(withQuery("/api/v1/explain", { of, id }));
  const lines = data ? (newestFirst ? [...data.lines].reverse() : data.lines) : [];
  return html`<section class="story" aria-label=${title}>
    <div class="story-head"><h3>${title}</h3><${Button} className="quiet" busy=${loading} onClick=${reload}>Refresh<//></div>
    ${error && html`<${Problem} error=${error} retry=${reload} />`}
    ${!data && !error && html`<p class="muted">Reading the ledger…</p>`}
    ${data && !lines.length && html`<p class="muted">The ledger has no entries about it.</p>`}
    ${data && !factless && html`<${Facts} facts=${data.facts || {}} />`}
    <ol>${lines.map((line, at) => html`<li key=${at}><time datetime=${new Date(line.at_unix_s * 1000).toISOString()}>${clock(line.at_unix_s)}</time><span>${line.text}</span></li>`)}</ol>
  </section>`;
}

const isFlat = (values) => values.length > 0 && values.every((one) => typeof one !== "object");

/** Facts of one word or a few counts, not of tables; a peer's page shows its id already. */
function Facts({ facts }) {
  const shown = Object.entries(facts).filter(([name, value]) => name !== "peer_id" && known(value) && value !== "" && (typeof value !== "object" || isFlat(Object.values(value))));
  if (!shown.length) return null;
  const written = (value) => (typeof value === "object" ? Object.entries(value).map(([name, one]) => `${words(name)} ${typeof one === "number" ? figure(one) : one}`).join(", ") : String(value));
  return html`<dl class="facts">${shown.map(([name, value]) => html`<div key=${name}><dt>${words(name)}</dt><dd>${written(value)}</dd></div>`)}</dl>`;
}
