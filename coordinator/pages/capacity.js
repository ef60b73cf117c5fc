// Capacity: which workers are on and why, what the plan predicts and costs, and a form to change its settings.
import { html, useMemo, useState } from "/web/vendor/htm-preact.js";
import { fleetSeries, TimeChart } from "/web/charts.js";
import { clock, count, duration, figure, fixed, known, NOTHING, percent, plural, usd, words } from "/web/format.js";
import { Badge, Button, Card, Dialog, Empty, Icon, Meter, PageHead, Problem, Tile } from "/web/parts.js";
import { useGet } from "/web/api.js";
import { go, href, setParams } from "/web/router.js";
import { useTopic } from "/web/stream.js";
import { VirtualTable } from "/web/table.js";
import { ActButtons, ActDialog } from "./acts.js";
import { toneOf } from "./event_rows.js";
import { useHistory } from "./history.js";
import { useMay } from "./session.js";
import { SettingsForm } from "./settings_form.js";

const MODES = {
  off: "The planner is off: all workers are used.",
  advise: "The planner only advises: it shows its choice and switches nothing.",
  act: "The planner switches workers on and off.",
};

export function Page({ params }) {
  const live = useTopic("capacity");
  const first = useGet(live ? "" : "/api/v1/capacity");
  const [isChanging, setChanging] = useState(false);
  const data = live || first.data;
  const change = html`<${Button} icon="settings" onClick=${() => setChanging(true)}>Change S, κ, budget<//>`;
  return html`<${PageHead} title="Capacity" note=${data ? MODES[data.mode] || "" : ""}>${change}<//>
    ${!data && (first.error ? html`<${Problem} error=${first.error} retry=${first.reload} />` : html`<p class="loading muted">Waiting for the first figures…</p>`)}
    ${data && html`<div class="stack"><${Plan} data=${data} /><${Who} data=${data} params=${params} /><div class="chart-grid">${data.has_prices && html`<${Money} data=${data} />`}<${Decisions} decisions=${data.decisions} /></div></div>`}
    ${isChanging && html`<${Dialog} open title="Change S, κ, budget" onClose=${() => setChanging(false)} wide><${SettingsForm} onApplied=${() => setChanging(false)} /><//>`}`;
}

function Plan({ data }) {
  const { activation } = data, { plan } = activation;
  const promised = (text) => (plan.infeasible ? NOTHING : text); // an infeasible plan has no figures
  const isShort = plan && !plan.infeasible && plan.rate_rollouts_per_second < plan.rate_needed_rollouts_per_second;
  return html`<section class="tiles" aria-label="Key figures">
      <${Tile} label="Workers on" value=${count(activation.on)} note=${`${count(activation.standby)} on standby`} />
      ${data.has_prices && html`<${Tile} label="Cost now" value=${usd(activation.usd_per_hour)} unit="/h" note=${plan ? `plan ${usd(plan.usd_per_hour)}/h` : data.mode === "off" ? "of workers that are on" : "no plan yet"} />`}
      ${plan && html`<${Tile} label="Lower bound" value=${promised(usd(plan.lp_bound_usd_per_hour))} unit=${plan.infeasible ? "" : "/h"} note=${plan.infeasible ? "no set is sufficient" : gap(plan)} title="No set of these workers that meets the demand can cost less than this (linear relaxation)" />
      <${Tile} label="Rollouts/s" value=${promised(figure(plan.rate_rollouts_per_second))} note=${`${figure(plan.rate_needed_rollouts_per_second)} needed`} tone=${isShort ? "warn" : ""} />
      <${Tile} label="Learner busy" value=${promised(percent(plan.utilisation, 1))} note="predicted" />
      <${Tile} label="T_bcast" value=${promised(duration(plan.t_bcast_s))} note="predicted" />
      <${Tile} label="S needed" value=${promised(fixed(plan.staleness_needed, 0))} note="predicted, slowest worker" title=${`So that even the rollouts (p90) of the plan's slowest worker are young enough. The Overview shows what the whole fleet's rollouts needed, as measured. Plan ${plan.number} was found in ${duration(plan.solve_s)}`} />`}
    </section>
    ${activation.failed && html`<${Warning} title="The last plan failed" text=${activation.failed} />`}
    ${plan?.infeasible && html`<${Warning} title="No set of workers is enough" text=${plan.infeasible} list=${plan.remedies} />`}
    ${plan && html`<p class="muted small corrections">Measured relative to predicted, as corrections for the next plan: rollouts ×${fixed(activation.rate_correction, 2)}, T_bcast ×${fixed(activation.t_bcast_correction, 2)}, learner step ×${fixed(activation.t_train_correction, 2)}. ${plural(activation.switches, "switch", "switches")} since start.</p>`}`;
}

const gap = (plan) => (plan.lp_bound_usd_per_hour > 0 ? `plan is ${percent(Math.max(0, plan.usd_per_hour / plan.lp_bound_usd_per_hour - 1), 1)} above` : "of the plan");

const Warning = ({ title, text, list = [] }) => html`<div class="notice-card" role="status"><${Icon} name="warning" /><div><p><b>${title}:</b> ${text}</p>
  ${list.length > 0 && html`<p>What would help:</p><ul>${list.map((one) => html`<li key=${one}>${one}</li>`)}</ul>`}</div></div>`;

// ---------------------------------------------------------------- workers

const keyOf = (one) => one.peer_id;
const perRollout = (one) => (one.rollouts_per_s > 0 && known(one.usd_per_hour) ? one.usd_per_hour / (one.rollouts_per_s * 3.6) : null);
/** A worker that neither a plan nor a pin has switched is on, if it was not off when it joined. */
const whyOf = (one) => one.reason || (one.on ? "on by default" : "off since it joined");
const isPinned = (one) => one.pin === "on" || one.pin === "off";
const isOn = (one) => html`<${Badge} dot tone=${one.on ? "good" : "idle"}>${one.on ? "on" : "off"}<//>${isPinned(one) ? html` <span class="badge accent">pinned ${one.pin}</span>` : ""}`;

const COLUMNS = [
  { id: "name", title: "Worker", width: 160, grow: 0.5, value: (one) => one.name, cell: (one) => html`<b>${one.name}</b>` },
  { id: "on", title: "State", width: 136, value: (one) => Number(one.on) + (isPinned(one) ? 0.5 : 0), down: true, cell: (one) => isOn(one) },
  { id: "reason", title: "Why", width: 240, grow: 4, value: (one) => one.reason, cell: (one) => html`<span class="muted two-lines" title=${whyOf(one)}>${whyOf(one)}</span>` },
  { id: "rate", title: "Rollouts/s", width: 90, end: true, down: true, rank: 1, value: (one) => one.rollouts_per_s, cell: (one) => figure(one.rollouts_per_s) },
  { id: "price", title: "$/h", width: 74, end: true, down: true, rank: 1, sparse: true, value: (one) => one.usd_per_hour, cell: (one) => usd(one.usd_per_hour) },
  { id: "each", title: "$ per 1,000", hint: "US dollars per thousand rollouts", width: 96, end: true, rank: 2, sparse: true, value: perRollout, cell: (one) => usd(perRollout(one)) },
];

const card = (one) => html`<div class="worker-card"><div class="line"><span class="worker-name"><b>${one.name}</b></span><span>${isOn(one)}</span></div>
  <div class="line muted"><span class="two-lines">${whyOf(one)}</span></div><div class="line muted"><span>${figure(one.rollouts_per_s)} rollouts/s</span><span>${known(one.usd_per_hour) ? `${usd(one.usd_per_hour)}/h` : ""}</span></div></div>`;

function Who({ data, params }) {
  const canAct = useMay("operator");
  const [selected, setSelected] = useState(new Set());
  const [asked, setAsked] = useState(null);
  const wanted = (params.q || "").toLowerCase();
  const rows = useMemo(() => data.workers.filter((one) => !wanted || `${one.name}\n${one.reason}`.toLowerCase().includes(wanted)), [data.workers, wanted]);
  const picked = data.workers.filter((one) => selected.has(one.peer_id));
  const sort = { id: params.sort || "on", down: params.sort ? params.down === "1" : true };
  return html`<section class="card flush who" aria-label="Which workers are on and why">
    ${picked.length ? html`<div class="fleet-bar picked" role="group" aria-label="Acts on the selected workers"><b role="status">${count(picked.length)} selected</b>
        <${ActButtons} canAct=${canAct} onAct=${(act) => setAsked({ act, peers: picked })} /><${Button} onClick=${() => setSelected(new Set())}>Clear<//></div>`
      : html`<div class="fleet-bar"><h2>Which workers are on and why</h2><input data-search class="input fleet-search" type="search" aria-label="Filter workers" placeholder="Name or reason…" value=${params.q || ""} onInput=${(event) => setParams({ q: event.target.value })} /></div>`}
    <${VirtualTable} label="Workers and why they are on" columns=${COLUMNS} rows=${rows} keyOf=${keyOf} nameOf=${(one) => one.name} sort=${sort} card=${card} cardHeight=${96}
      onSort=${({ id, down }) => setParams({ sort: id, down: down ? "1" : "0" })} selected=${selected} onSelect=${setSelected} onOpen=${(id) => go(`workers/${id}`)} empty=${html`<${Empty} title=${data.workers.length ? "No worker matches" : "No workers are connected"} />`} />
    ${asked && html`<${ActDialog} act=${asked.act} peers=${asked.peers} onClose=${() => setAsked(null)} onDone=${() => setSelected(new Set())} />`}
  </section>`;
}

// ---------------------------------------------------------------- money and decisions

function Money({ data }) {
  const { history } = useHistory(3600);
  const { spending } = data;
  const series = useMemo(() => fleetSeries(history?.series.usd_per_hour, { mean: "all workers that are on" }), [history]);
  const lines = known(spending?.usd_per_hour_max) ? [{ value: spending.usd_per_hour_max, label: "budget", colour: "bad" }] : [];
  return html`<${Card} title="Money" note="last hour">
    ${spending ? html`<${Spending} spending=${spending} />` : html`<p class="muted small">No workers are rented from providers. The cost is that of the prices set for the run's workers.</p>`}
    ${series.length > 0 && html`<${TimeChart} times=${history.times_unix_s} series=${series} lines=${lines} format=${(value) => `${usd(value)}/h`} label="Cost per hour" fromZero height=${220} />`}
  <//>`;
}

function Spending({ spending }) {
  const most = spending.usd_max ?? spending.usd_total_max;
  const share = known(most) && most > 0 ? spending.spent_usd / most : null;
  return html`<div class="spending"><p><b>${usd(spending.spent_usd)}</b> spent${known(most) ? ` of ${usd(most)}` : ", without a limit"}${known(spending.usd_per_accepted_rollout) ? `, ${usd(spending.usd_per_accepted_rollout)} per accepted rollout` : ""}</p>
    ${share !== null && html`<${Meter} value=${share} label="Share of the budget that is spent" tone=${share > 0.95 ? "bad" : share > 0.8 ? "warn" : ""} />`}
    ${Array.isArray(spending.providers) && spending.providers.length > 0 && html`<table><thead><tr><th scope="col">Provider</th><th scope="col" class="num">Machines</th><th scope="col" class="num">Egress</th><th scope="col" class="num">Forecast</th></tr></thead>
      <tbody>${spending.providers.map((one) => html`<tr key=${one.provider}><td>${one.provider}</td><td class="num">${usd(one.machine_usd)}</td><td class="num">${usd(one.egress_usd)}</td><td class="num">${usd(one.forecast_usd)}</td></tr>`)}</tbody></table>`}
    ${Object.entries(spending.held_back || {}).slice(0, 5).map(([name, why]) => html`<p key=${name} class="muted small">${name} is held back: ${why}</p>`)}</div>`;
}

function Decisions({ decisions }) {
  return html`<${Card} title="Decisions" note="newest first" actions=${html`<a class="small" href=${href("events", { kind: "activated,standby,pinned,activation_planned" })}>All</a>`} flush>
    ${!decisions.length && html`<${Empty} title="No decisions yet">Every switch, pin and plan is listed here with its reason.<//>`}
    <ul class="decisions" tabindex="0" aria-label="Decisions">${decisions.map((one) => html`<li key=${one.id}><a href=${href(`events/${one.id}`)}><time>${clock(one.at_unix_s)}</time><${Badge} tone=${toneOf(one.kind)}>${words(one.kind)}<//><b>${one.name || one.subject}</b><span class="muted">${one.detail}</span></a></li>`)}</ul>
  <//>`;
}
