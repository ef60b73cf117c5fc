// The story of anything that the ledger knows, as /api/v1/explain tells it.
import { html } from "/web/vendor/htm-preact.js";
import { useGet, withQuery } from "/web/api.js";
import { clock } from "/web/format.js";
import { Button, Problem } from "/web/parts.js";

/** Args: of: rollout, lease, peer, version, step or event; id; newestFirst. */
export function Story({ of, id, newestFirst, title = "Story" }) {
  const { data, error, loading, reload } = useGet(withQuery("/api/v1/explain", { of, id }));
  const lines = data ? (newestFirst ? [...data.lines].reverse() : data.lines) : [];
  return html`<section class="story" aria-label=${title}>
    <div class="story-head"><h3>${title}</h3><${Button} busy=${loading} onClick=${reload}>Refresh<//></div>
    ${error && html`<${Problem} error=${error} retry=${reload} />`}
    ${!data && !error && html`<p class="muted">Reading the ledger…</p>`}
    ${data && !lines.length && html`<p class="muted">The ledger holds nothing about it.</p>`}
    <ol>${lines.map((line, at) => html`<li key=${at}><time datetime=${new Date(line.at_unix_s * 1000).toISOString()}>${clock(line.at_unix_s)}</time><span>${line.text}</span></li>`)}</ol>
  </section>`;
}
