// The outcome of every rollout that this machine sent.
import { html, useState } from "/web/vendor/htm-preact.js";
import { count, leaseName, percent, plural, words } from "/web/format.js";
import { Badge, Card, Empty, PageHead, Segments, Shares } from "/web/parts.js";
import { meaningOf, toneOf } from "./words.js";

const COLOURS = { accepted: "good", interrupted: "series-6" };
const OTHERS = ["series-3", "series-5", "series-4", "series-1", "worst"];

function partsOf(counts) {
  const names = Object.keys(counts).sort((one, other) => (other === "accepted") - (one === "accepted") || counts[other] - counts[one]);
  let next = 0;
  return names.map((name) => ({ label: words(name), value: counts[name], text: count(counts[name]), colour: COLOURS[name] || OTHERS[next++ % OTHERS.length] }));
}

const sum = (counts) => Object.values(counts).reduce((total, value) => total + value, 0);

function Counts({ title, counts }) {
  const total = sum(counts);
  const note = total ? `${plural(total, "rollout")}, ${percent((counts.accepted || 0) / total)} accepted` : "";
  return html`<${Card} title=${title} note=${note}>${total ? html`<${Shares} label=${title} parts=${partsOf(counts)} />` : html`<p class="muted">None yet.</p>`}<//>`;
}

function Reasons({ counts }) {
  const names = Object.keys(counts).filter((name) => name !== "accepted");
  if (!names.length) return null;
  return html`<${Card} title="What the reasons mean"><dl class="reasons">${names.map((name) => html`<div key=${name}><dt><${Badge} tone=${toneOf(name)}>${words(name)}<//></dt><dd>${meaningOf(name)}</dd></div>`)}</dl><//>`;
}

const clockOf = (at) => at.slice(11);

export function Rollouts({ report }) {
  const [shown, setShown] = useState("all");
  const newest = [...report.newest].reverse();
  const rows = shown === "all" ? newest : newest.filter((one) => one.verdict !== "accepted");
  const choice = html`<${Segments} label="Receipts shown" value=${shown} options=${[["all", "All"], ["refused", "Not accepted"]]} onChange=${setShown} />`;
  return html`<div class="stack">
    <${PageHead} title="Rollouts" note="Every rollout that this machine sent has a receipt." />
    <div class="pair"><${Counts} title="Today" counts=${report.today} /><${Counts} title="In total" counts=${report.total} /></div>
    <${Card} title="Newest receipts" note="kept for 30 days in receipts/, one file per day" actions=${choice} flush>
      ${rows.length ? html`<div class="scroll tall" tabindex="0" role="region" aria-label="Receipts"><table class="receipts">
        <thead><tr><th>Time</th><th>Verdict</th><th class="num">Tokens</th><th class="num">Version</th><th>Rollout</th></tr></thead>
        <tbody>${rows.map((one) => html`<tr key=${one.lease_id + "/" + one.sample_index + one.at}><td class="nowrap">${clockOf(one.at)}</td>
          <td><${Badge} tone=${toneOf(one.verdict)} title=${meaningOf(one.verdict)}>${words(one.verdict)}<//></td>
          <td class="num">${count(one.tokens)}</td><td class="num">${one.version < 0 ? "–" : one.version}</td><td class="muted nowrap">lease ${leaseName(one.lease_id)}, sample ${one.sample_index}</td></tr>`)}</tbody>
      </table></div>` : html`<${Empty} title=${newest.length ? "All of the newest were accepted" : "No receipts since the peer started"}>${newest.length ? "" : "They appear with the first rollouts."}<//>`}
    <//>
    <${Reasons} counts=${report.total} />
  </div>`;
}
