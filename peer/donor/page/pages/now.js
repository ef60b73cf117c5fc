// What this machine is doing and why: state, version, speed, rates, temperatures and links.
import { html, useEffect, useMemo, useState } from "/web/vendor/htm-preact.js";
import { get } from "/web/api.js";
import { TimeChart } from "/web/charts.js";
import { bytes, compact, count, duration, fixed, known, NOTHING, percent, plural, rate, shortId } from "/web/format.js";
import { Badge, Card, Empty, Meter, PageHead, Tile } from "/web/parts.js";
import { useMessages } from "/web/stream.js";
import { sentence, stateOf } from "./words.js";

const KEPT = 720;
const BYTES_PER_MBIT = 125_000;

/** The last hour by column: {time_unix_s: [...], tokens_per_second: [...], ...}; it grows with each sample. */
function useHistory() {
  const [table, setTable] = useState({ columns: [], rows: [] });
  useEffect(() => { get("/api/v1/history").then(setTable, () => {}); }, []);
  useMessages(["sample"], (_topic, row) => setTable(({ columns, rows }) => {
    if (!columns.length || !row.length || (rows.length && rows[rows.length - 1][0] >= row[0])) return { columns, rows };
    return { columns, rows: [...rows.slice(1 - KEPT), row] };
  }));
  return useMemo(() => Object.fromEntries(table.columns.map((name, at) => [name, table.rows.map((row) => row[at])])), [table]);
}

const celsius = (value) => (known(value) ? `${Math.round(value)} °C` : NOTHING);
const anyOf = (values) => (values || []).some(known);

export function Now({ report }) {
  const history = useHistory();
  const times = history.time_unix_s || [];
  const { limits, readings } = report;
  const caps = [["upload_mbit_s_max", "cap up"], ["download_mbit_s_max", "cap down"]].filter(([key]) => limits[key]).map(([key, label]) => ({ value: limits[key] * BYTES_PER_MBIT, label, colour: "worst" }));
  const ceilings = [["cpu_celsius_max", "processor's limit"], ["gpu_celsius_max", "accelerator's limit"]].filter(([key]) => limits[key]).map(([key, label]) => ({ value: limits[key], label, colour: "worst" }));
  const heat = [["cpu_celsius", "Processor", "series-1"], ["gpu_celsius", "Accelerator", "series-3"]].filter(([key]) => anyOf(history[key]));
  return html`<div class="stack">
    <${PageHead} title="Now" />
    <${State} report=${report} />
    ${report.verdict && html`<${Verdict} verdict=${report.verdict} />`}
    <${Tiles} report=${report} />
    <${Version} report=${report} />
    <div class="charts">
      <${Card} title="Speed"><${TimeChart} times=${times} label="Tokens per second" fromZero format=${(value) => count(Math.round(value))} sync="hour" series=${[{ label: "tokens/s", values: history.tokens_per_second || [], colour: "series-1", fill: true }]} /><//>
      <${Card} title="Chunks sent and received"><${TimeChart} times=${times} label="Bytes of chunks per second" fromZero format=${rate} sync="hour" lines=${caps} series=${[
        { label: "sent", values: history.sent_bytes_per_second || [], colour: "series-2" }, { label: "received", values: history.received_bytes_per_second || [], colour: "series-4" }]} /><//>
      ${heat.length > 0 && html`<${Card} title="Temperature"><${TimeChart} times=${times} label="Temperature" format=${celsius} sync="hour" lines=${ceilings} series=${heat.map(([key, label, colour]) => ({ label, values: history[key], colour }))} /><//>`}
      ${anyOf(history.others_cpu_share) && html`<${Card} title="Processor used by others"><${TimeChart} times=${times} label="Share of the processor that other programs use" fromZero format=${percent} sync="hour" lines=${limits.others_cpu_share_max ? [{ value: limits.others_cpu_share_max, label: "limit", colour: "worst" }] : []} series=${[{ label: "others", values: history.others_cpu_share, colour: "series-6" }]} /><//>`}
    </div>
    <${Reached} reach=${report.reach} />
    <${Links} links=${report.links} connected=${report.connected} />
    ${known(readings.idle_s) && limits.idle_minutes_min && html`<p class="muted small">This machine was last used ${duration(readings.idle_s)} ago.</p>`}
  </div>`;
}

function State({ report }) {
  const state = stateOf(report);
  return html`<${Card} className="state-card tone-${state.tone || "none"}" aria-label="State">
    <p class="state-title">${state.title}</p>
    <p class="state-reason">${report.reason ? sentence(report.reason) : "It is ready to work."}</p>
    <dl class="facts">
      <div><dt>Run</dt><dd>${report.run_id}</dd></div>
      <div><dt>Coordinator</dt><dd><${Badge} dot tone=${report.connected ? "good" : "warn"}>${report.connected ? "connected" : "trying to connect"}<//> <span class="muted">${report.coordinator}</span>
        ${(report.coordinators_failing || []).map((place) => html`<div class="muted" key=${place.address}>${place.hop} of ${place.address}: ${place.reason}; ${place.fix}</div>`)}</dd></div>
      <div><dt>Running for</dt><dd>${duration(report.uptime_s)}</dd></div>
    </dl>
  <//>`;
}

/** What the run found wrong with this machine's rollouts: the token, both values, likely causes, and what to do. */
function Verdict({ verdict }) {
  const tone = verdict.state === "quarantined" ? "bad" : "warn";
  return html`<${Card} title="What the run found" className="state-card verdict tone-${tone}" aria-label="Verdict">
    <p><${Badge} dot tone=${tone}>${verdict.state}<//> ${sentence(verdict.reason)}</p>
    ${verdict.token && html`<dl class="facts">
      <div><dt>Token</dt><dd>${sentence(verdict.token)}</dd></div>
      <div><dt>Off by</dt><dd>${fixed(verdict.margin_nats, 3)} nats below the token that its seed gives</dd></div>
      <div><dt>Allowed</dt><dd>${fixed(verdict.bound_nats, 3)} nats</dd></div>
    </dl>`}
    ${verdict.causes.length > 0 && html`<p>An honest machine may do this because of</p><ul>${verdict.causes.map((one) => html`<li key=${one}>${one}</li>`)}</ul>`}
    <p><b>What to do:</b> ${verdict.to_do}.</p>
  <//>`;
}

function Tiles({ report }) {
  const { limits, readings, used } = report;
  const today = Object.values(report.today).reduce((sum, value) => sum + value, 0);
  const quota = (limit) => (limit ? `of ${fixed(limit, 0)} GB (internet)` : "internet, no quota");
  const hot = (value, most) => (known(value) && most && value > most ? "bad" : "");
  const warm = [["Processor", readings.cpu_celsius, limits.cpu_celsius_max], ["Accelerator", readings.gpu_celsius, limits.gpu_celsius_max]].filter(([, value]) => known(value));
  return html`<div class="tiles">
    <${Tile} label="Speed" value=${count(Math.round(report.tokens_per_second))} unit="tokens/s" note=${`${compact(report.tokens_generated)} in all`} />
    <${Tile} label="Accepted today" value=${count(report.today.accepted || 0)} note=${`of ${plural(today, "rollout")}`} href="#/rollouts" />
    <${Tile} label="Sent this month" value=${bytes(used.sent_bytes)} note=${quota(limits.upload_gb_month)} href="#/limits" />
    <${Tile} label="Received this month" value=${bytes(used.received_bytes)} note=${quota(limits.download_gb_month)} href="#/limits" />
    ${warm.map(([label, value, most]) => html`<${Tile} key=${label} label=${label} value=${celsius(value)} tone=${hot(value, most)} note=${most ? `limit ${celsius(most)}` : "no limit"} />`)}
    ${known(readings.power_watts) && html`<${Tile} label="Power" value=${fixed(readings.power_watts, 0)} unit="W" note=${limits.power_watts_max ? `limit ${limits.power_watts_max} W` : "accelerators"} />`}
    ${limits.memory_free_gib_min && known(readings.memory_free_bytes) && html`<${Tile} label="Memory free" value=${bytes(readings.memory_free_bytes)} note=${`at least ${limits.memory_free_gib_min} GiB`} />`}
    ${limits.disk_free_gib_min && known(readings.disk_free_bytes) && html`<${Tile} label="Disk free" value=${bytes(readings.disk_free_bytes)} note=${`at least ${limits.disk_free_gib_min} GiB`} />`}
  </div>`;
}

function Version({ report }) {
  const { receiving, version_active: active, version_newest: newest } = report;
  const said = known(active) ? html`Generating with version <b>${active}</b>` : "Not generating yet";
  const held = known(newest) ? html`; newest received <b>${newest}</b>` : "";
  return html`<${Card} title="Version" note=${html`${said}${held}`}>
    ${receiving ? html`<${Receiving} receiving=${receiving} />` : html`<p class="muted">${known(newest) ? "No version is being received. The next one arrives when the learner publishes it." : "Waiting for the run's newest version."}</p>`}
  <//>`;
}

function Receiving({ receiving }) {
  const share = receiving.chunks_have / receiving.chunks_total;
  const text = `Version ${receiving.version}: ${count(receiving.chunks_have)} of ${count(receiving.chunks_total)} chunks, ${percent(share)}`;
  return html`<p class="receiving-said"><span>Receiving version <b>${receiving.version}</b></span><span>${count(receiving.chunks_have)} of ${plural(receiving.chunks_total, "chunk")} · ${percent(share)}</span></p>
    <${Meter} value=${share} label=${text} />
    <div class="chunk-map" role="img" aria-label="Chunk map: ${text}">${receiving.map.map((cell, at) => html`<i key=${at} style=${{ opacity: cell === 255 ? 1 : cell ? 0.25 + (0.55 * cell) / 255 : 1 }} class=${cell ? "" : "none"}></i>`)}</div>
    <p class="muted small">From the first chunk to the last; a cell is filled once all of its chunks are received and verified.</p>`;
}

const REACHED = {
  dialable: "Other machines can dial this one.",
  "hole-punchable": "Other machines cannot dial this one directly, but can connect by hole punching.",
  "only outwards": "Other machines cannot dial this one. It dials them, which is enough to take part.",
};

/** How others reach this machine, its NAT, and the result of dialing its address. */
function Reached({ reach }) {
  const between = reach.nat_means && reach.nat !== "open" ? sentence(`${reach.nat_means}.`) : "";
  const facts = [
    reach.address && ["Address", reach.address.split(" ")[0]],
    reach.checked && ["Dial check", reach.checked],
    reach.relays > 0 && ["Through relays", `${plural(reach.relays, "address", "addresses")} at other machines`],
    reach.p2p && ["libp2p", reach.p2p],
  ].filter(Boolean);
  return html`<${Card} title="How others reach this machine" note=${reach.nat === "unknown" || reach.nat === "open" ? "" : `router: ${reach.nat}`}>
    <p><b>${sentence(reach.reachability)}.</b> ${REACHED[reach.reachability] || ""} <span class="muted">${between}</span></p>
    ${facts.length > 0 && html`<dl class="facts">${facts.map(([term, text]) => html`<div key=${term}><dt>${term}</dt><dd>${text}</dd></div>`)}</dl>`}
  <//>`;
}

function Links({ links, connected }) {
  if (!links.length) {
    return html`<${Card} title="Links to other machines"><${Empty} title="No links are open">${connected ? "The coordinator plans them when there is a version to relay." : "They open once the coordinator answers."}<//><//>`;
  }
  return html`<${Card} title="Links to other machines" note=${plural(links.length, "link")} flush>
    <div class="scroll" tabindex="0" role="region" aria-label="Links"><table>
      <thead><tr><th>Machine</th><th>Path</th><th class="num">Round trip</th><th class="num">Sent</th><th class="num">Received</th></tr></thead>
      <tbody>${links.map((link) => html`<tr key=${link.peer_id + link.transport}><td class="nowrap"><code title=${link.peer_id}>${shortId(link.peer_id)}</code></td><td class="nowrap">${link.path}</td>
        <td class="num">${link.rtt_s ? duration(link.rtt_s) : NOTHING}</td><td class="num">${bytes(link.bytes_sent)}</td><td class="num">${bytes(link.bytes_received)}</td></tr>`)}</tbody>
    </table></div>
  <//>`;
}
