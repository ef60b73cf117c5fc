// Broadcast: how the newest version spreads, its hops, what delays it, and how long earlier versions took.
import { html, useMemo, useRef } from "/web/vendor/htm-preact.js";
import { useGet } from "/web/api.js";
import { fleetSeries, TimeChart } from "/web/charts.js";
import { bytes, count, duration, known, NOTHING, percent, plural, rate } from "/web/format.js";
import { Card, Empty, Meter, PageHead, Problem, Segments, Select, Tile } from "/web/parts.js";
import { href, setParams } from "/web/router.js";
import { useTopic } from "/web/stream.js";
import { HeatMap } from "./heat_map.js";
import { Reach } from "./reach.js";
import { RelayTree, shapeFor, useWidth } from "./tree.js";
import { slowestStripe, stripesOf } from "./tree_layout.js";
import { useHistory } from "./history.js";

export function Page({ params }) {
  const live = useTopic("broadcast");
  const first = useGet(live ? "" : "/api/v1/broadcast");
  const data = live || first.data;
  if (!data) return html`<${PageHead} title="Broadcast" />${first.error ? html`<${Problem} error=${first.error} retry=${first.reload} />` : html`<p class="loading muted">Waiting for the first figures…</p>`}`;
  if (!known(data.version)) {
    return html`<${PageHead} title="Broadcast" /><${Card}><${Empty} title="No version has been published yet">The relay tree appears when the learner announces its first version.<//><//>`;
  }
  return html`<${PageHead} title="Broadcast" note=${`version ${data.version}, ${encodingWords(data)}`} />
    <div class="stack">
      <${Now} data=${data} />
      <${Figures} data=${data} />
      <${Tree} data=${data} params=${params} />
      <${Reach} reach=${data.reach} />
      <${Card} title="Chunks"><${HeatMap} peers=${data.peers} heatMap=${data.heat_map} version=${data.version} /><//>
      <${Past} data=${data} />
    </div>`;
}

function encodingWords({ encoding }) {
  if (!encoding) return "unknown encoding";
  return `${encoding.kind}${known(encoding.base_version) ? ` from ${encoding.base_version}` : ""} of ${bytes(encoding.size_bytes)}`;
}

function Now({ data }) {
  const { have, total } = data.peers_holding;
  const slow = data.slowest_branch, along = data.tree.by_region ? null : slowestStripe(data.tree.nodes, data.tree.edges, slow?.path);
  return html`<section class="card now-card" aria-label="Now">
    <div><p class="now-sentence">${data.running ? `Waiting for ${data.waiting_for || "the last peers"}.` : `All active peers hold version ${data.version}.`}</p>
      <p class="muted">${data.running && known(data.started_s_ago) ? `since ${duration(data.started_s_ago)}; ${data.next}` : `Next: ${data.next}.`}</p></div>
    <div class="now-share"><p><b>${count(have)}</b> of ${plural(total, "peer")} ${total === 1 ? "holds" : "hold"} it</p><${Meter} value=${total ? have / total : 0} tone=${have === total ? "good" : ""} label="Peers that hold the newest version" /></div>
    ${slow && html`<div class="now-slow"><p class="muted">Slowest branch, ${duration(slow.seconds)}${known(along) ? html`, <a href=${href("broadcast", { stripe: along })}>stripe ${along}</a>` : ""}</p><p class="branch">${slow.path.map((name, at) => html`${at > 0 && html`<span class="muted" aria-hidden="true"> → </span>`}<span>${name}</span>`)}</p></div>`}
  </section>`;
}

function Figures({ data }) {
  const { t_bcast_s: took, totals, plan, hop_rates: hops } = data;
  return html`<section class="tiles" aria-label="Key figures">
    <${Tile} label="T_bcast, last" value=${duration(took.last)} note=${`p50 ${duration(took.p50)}, p95 ${duration(took.p95)}`} title="From the learner's announcement to the last active peer's verified copy" />
    <${Tile} label="From peers" value=${known(totals.origin_share) ? percent(1 - totals.origin_share) : NOTHING} note=${`origin sent ${bytes(totals.bytes_from_origin)}`} title="Share of chunk bytes that peers relayed to each other" />
    <${Tile} label="Saved by deltas" value=${bytes(totals.bytes_saved_by_deltas)} note="against keyframes" />
    <${Tile} label="Re-parentings" value=${count(totals.reparentings)} note=${plural(plan.replans, "replan")} title="Times that a peer got another parent during a broadcast" />
    <${Tile} label="Hop rate" value=${rate(hops.p50)} note=${`${known(hops.slowest) ? `slowest ${rate(hops.slowest)}` : "not measured yet"}${hops.congestion_control.bbr ? `, BBR on ${hops.congestion_control.bbr}` : ""}`} title=${`Median of ${hops.measured} measured hops. TCP congestion control: ${Object.entries(hops.congestion_control).map(([name, number]) => `${name} on ${number}`).join(", ") || "not reported"}`} />
    <${Tile} label="Plan" value=${plan.mode} note=${plural(plan.stripes, "stripe")} title=${`${plural(plan.made, "plan")} since the coordinator started`} />
    <${Tile} label="Duplicate chunks" value=${count(totals.chunks_duplicate)} note=${totals.chunks_rejected > 0 ? `${count(totals.chunks_rejected)} rejected` : `${count(totals.chunks_hedged)} hedged`} tone=${totals.chunks_rejected > 0 ? "warn" : ""} />
  </section>`;
}

function Tree({ data, params }) {
  const frame = useRef(null), width = useWidth(frame);
  const { tree } = data;
  const stripes = useMemo(() => stripesOf(tree.edges), [tree]);
  const stripe = useStripe(data, stripes, params.stripe);
  const shape = ["rows", "rings", "list"].includes(params.view) ? params.view : shapeFor(tree.nodes, width);
  const actions = html`${stripes.length > 1 && html`<${Select} hideLabel label="Stripe" value=${stripe === null ? "all" : String(stripe)} onChange=${(value) => setParams({ stripe: value })}
      options=${[["all", `All ${stripes.length} stripes`], ...stripes.map((one) => [String(one), `Stripe ${one}`])]} />`}
    <${Segments} label="Shape" value=${shape} onChange=${(value) => setParams({ view: value })} options=${[["rows", "Columns"], ["rings", "Rings"], ["list", "List"]]} />`;
  return html`<div ref=${frame}><${Card} title="Relay tree" note=${tree.by_region ? "with more than 200 peers each node is a region" : stripe === null ? "each peer below its fastest parent" : "the path of this stripe's chunks from peer to peer"} actions=${actions}>
    ${width > 0 && (tree.nodes.length ? html`<${RelayTree} tree=${tree} stripe=${stripe} shape=${shape} slowest=${data.slowest_branch?.path} />`
      : html`<${Empty} title="No peers relay yet">Peers appear here when they join.<//>`)}<//></div>`;
}

/** The chosen stripe; else that of the slowest branch when the page opened, as long as the plan has a stripe of that number. */
function useStripe({ tree, slowest_branch: slowest }, stripes, chosen) {
  const first = useRef(null);
  if (!stripes.includes(first.current)) first.current = tree.by_region ? null : slowestStripe(tree.nodes, tree.edges, slowest?.path) ?? stripes[0] ?? null;
  if (chosen === "all") return null;
  return chosen && stripes.includes(Number(chosen)) ? Number(chosen) : first.current;
}

function Past({ data }) {
  const { history } = useHistory(3600);
  const versions = useMemo(() => data.history.map((one) => one.version), [data.history]);
  const of = (name) => data.history.map((one) => one[name]);
  const perVersion = useMemo(() => [{ label: "last peer", values: of("t_bcast_s"), colour: "series-1" }], [data.history]);
  const saved = useMemo(() => [{ label: "saved", values: of("bytes_saved_by_deltas"), colour: "series-2" }], [data.history]);
  const moved = useMemo(() => [{ label: "re-parentings", values: of("reparentings"), colour: "series-3" }], [data.history]);
  const byTime = useMemo(() => fleetSeries(history?.series.t_bcast_s), [history]);
  return html`<div class="chart-grid">
    <${Card} title="T_bcast" note="fleet mean and worst, last hour">${byTime.length > 0 && html`<${TimeChart} times=${history.times_unix_s} series=${byTime} format=${duration} label="T_bcast, mean and worst peer" fromZero />`}<//>
    <${Card} title="T_bcast per version" note=${`newest ${versions.length}`}><${TimeChart} times=${versions} series=${perVersion} format=${duration} label="T_bcast of each version" xKind="step" fromZero sync="versions" /><//>
    <${Card} title="Bytes saved by deltas" note="per version"><${TimeChart} times=${versions} series=${saved} format=${bytes} label="Bytes saved by deltas" xKind="step" fromZero sync="versions" /><//>
    <${Card} title="Re-parentings" note="per version"><${TimeChart} times=${versions} series=${moved} format=${count} label="Re-parentings" xKind="step" fromZero sync="versions" /><//>
  </div>`;
}
