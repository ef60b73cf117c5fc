// The whole run on one page: its health, alerts, key figures and their history.
import { html, useMemo, useState } from "/web/vendor/htm-preact.js";
import { Button, Card, Icon, Meter, PageHead, Problem, Segments, Tile } from "/web/parts.js";
import { fleetSeries, TimeChart } from "/web/charts.js";
import { smoothed } from "/web/chart_parts.js";
import { age, compact, count, duration, fixed, known, NOTHING, percent, plural, rate, usd, words } from "/web/format.js";
import { href, setParams } from "/web/router.js";
import { ended, sentence } from "./head.js";
import { SPANS, useHistory } from "./history.js";
import { Ages, Outcomes } from "./outcomes.js";

const SEVERITY = { critical: ["bad", "critical"], warning: ["warn", "warning"], info: ["", "info"] };
const SPARK_POINTS = 60;
const ALERTS_SHOWN = 4;

export function Page({ overview, params }) {
  const span = params.span || "3600";
  const { history, error } = useHistory(span);
  if (!overview) return html`<${PageHead} title="Overview" /><div class="loading" aria-busy="true"></div>`;
  return html`
    <${PageHead} title="Overview"><${Segments} label="Time shown" value=${span} options=${SPANS} onChange=${(value) => setParams({ span: value })} /><//>
    <div class="stack">
      <${Now} overview=${overview} />
      <${Alerts} alerts=${overview.alerts || []} />
      <${Tiles} overview=${overview} history=${history} />
      <div class="grid-2-1">
        <${Reward} overview=${overview} />
        <${Ages} histogram=${overview.staleness_histogram} limit=${overview.staleness_limit} gate=${overview.staleness?.age_max} oldest=${overview.staleness_max_trained} height=${204} />
      </div>
      ${error && html`<${Problem} error=${error} />`}
      <div class="grid-3"><${Fleet} history=${history} /><${Outcomes} rollouts=${overview.rollouts} episodes=${overview.episodes} className="span-2" /></div>
    </div>`;
}

// ---------------------------------------------------------------- current wait

function Now({ overview }) {
  const share = overview.steps ? overview.step / overview.steps : 0;
  const said = sentence(overview) || (ended(overview) ? "The run is over." : "The run is not waiting for anything.");
  const detail = overview.learner_detail && !said.includes(overview.learner_detail) ? ", " + overview.learner_detail : "";
  return html`<section class="card now" aria-label="What the run is waiting for">
    <div class="now-said">
      <p class="now-label">Now</p>
      <p class="now-sentence">${said}</p>
      <dl class="now-facts">
        ${overview.steps > 0 && html`<div><dt>Learner</dt><dd>${words(overview.learner_phase || NOTHING)}${detail}</dd></div>`}
        <div><dt>Version</dt><dd>${count(overview.newest_version)}${overview.epoch ? `, epoch ${overview.epoch}` : ""}</dd></div>
        <div><dt>Publishes</dt><dd>every ${overview.publish_every_steps === 1 ? "step" : plural(overview.publish_every_steps, "step")}${overview.staleness?.publish_auto ? ", as broadcasts allow" : ""}</dd></div>
      </dl>
    </div>
    ${overview.steps > 0 && html`<div class="now-progress">
      <p><span class="now-step">${count(overview.step)}</span><span class="muted">of ${count(overview.steps)} steps</span></p>
      <${Meter} value=${share} label="Learner steps done" tone=${overview.phase === "finished" ? "good" : ""} />
      <p class="muted small">${percent(share)} done, ${duration(overview.elapsed_s)} ${ended(overview) ? "in all" : "so far"}${left(overview)}</p>
    </div>`}
  </section>`;
}

const PACE_STEPS = 4; // the first steps include what is compiled, and would foretell hours

/** Time that the remaining steps take at the present pace. */
function left(overview) {
  const period = overview.staleness?.step_period_s;
  if (ended(overview) || overview.phase === "paused" || !period || overview.step < PACE_STEPS || overview.step >= overview.steps) return "";
  return `, about ${duration(period * (overview.steps - overview.step))} left at this pace`;
}

function Alerts({ alerts }) {
  const [all, setAll] = useState(false);
  if (!alerts.length) return null;
  const shown = all ? alerts : alerts.slice(0, ALERTS_SHOWN);
  return html`<section class="card flush" aria-labelledby="alerts-head">
    <h2 class="hidden" id="alerts-head">${plural(alerts.length, "alert")}</h2>
    <ul class="alerts">${shown.map((one) => html`<${Alert} key=${one.id} one=${one} />`)}</ul>
    ${alerts.length > ALERTS_SHOWN && html`<div class="alerts-more"><${Button} aria-expanded=${String(all)} onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show all ${alerts.length}`}<//></div>`}
  </section>`;
}

function Alert({ one }) {
  const [tone, icon] = SEVERITY[one.severity] || SEVERITY.info;
  return html`<li>
    <span class="alert-icon ${tone}" title=${one.severity}><${Icon} name=${icon} /><span class="hidden">${one.severity}</span></span>
    <div class="alert-text"><p>${one.text}</p>${one.fix && html`<p class="muted small">${one.fix}</p>`}</div>
    <span class="muted small nowrap">${age(one.since_s)}</span>
    ${one.page && html`<a class="small nowrap" href=${href(one.page, one.subject ? { q: one.subject } : {})} aria-label="Open ${one.page}: ${one.text}">${one.page}<${Icon} name="chevron" size=${11} /></a>`}
  </li>`;
}

// ---------------------------------------------------------------- key figures

function Tiles({ overview, history }) {
  const spark = (name) => history?.series[name]?.mean.slice(-SPARK_POINTS);
  const { t_bcast_s: bcast = {}, staleness = {}, rollouts = {} } = overview;
  const before = overview.reward_before, after = overview.reward_after;
  const oldest = overview.staleness_max_trained;
  const broken = staleness.gate_broken_by > 0;
  const lowered = !broken && known(oldest) && oldest > (staleness.age_max ?? overview.staleness_limit);
  const needed = known(overview.staleness_needed) ? `${overview.staleness_needed} needed, as measured` : "staleness in steps";
  const held = known(before) || known(after) ? `held out ${fixed(before)} → ${known(after) ? fixed(after) : "…"}` : "batch mean";
  return html`<div class="tiles overview-tiles">
    <${Tile} label="Reward" value=${fixed(overview.reward_train, 3)} note=${held} href=${href("run")} spark=${(overview.reward_history || []).slice(-SPARK_POINTS).map(([, value]) => value)} />
    <${Tile} label="Tokens per second" value=${compact(overview.tokens_per_s)} note="of all workers" href=${href("workers")} spark=${spark("tokens_per_s")} />
    <${Tile} label="Learner busy" value=${percent(overview.recent_utilisation)} note="of the last 20 steps" title=${known(overview.learner_utilisation) ? `${percent(overview.learner_utilisation)} of its time since the start` : ""} spark=${spark("learner_utilisation")} />
    <${Tile} label=${html`T<sub>bcast</sub> p50`} value=${duration(bcast.p50)} note=${"p95 " + duration(bcast.p95)} title=${"From a version's announcement to the last active peer's verified copy." + (known(overview.peer_byte_share) ? ` Peers received ${percent(overview.peer_byte_share)} of chunk bytes from each other.` : "")} href=${href("broadcast")} spark=${spark("t_bcast_s")} />
    <${Tile} label="Oldest trained" value=${known(oldest) ? oldest : NOTHING} unit=${"of S = " + overview.staleness_limit} tone=${broken ? "bad" : ""} note=${lowered ? "trained under a larger S" : needed} title="Needed: what T_bcast (p95), the generation of a rollout (p90 of the whole fleet's) and a learner step took so far. The Capacity page shows what its plan predicts of its slowest worker." spark=${spark("age_steps")} />
    <${Workers} workers=${overview.workers} />
    <${Tile} label="Cost" value=${usd(overview.usd_per_hour)} unit="/ h" note=${known(overview.usd_per_accepted_rollout) ? usd(overview.usd_per_accepted_rollout) + " per rollout" : spent(overview)} href=${href("capacity")} spark=${spark("usd_per_hour")} />
    <${Tile} label="Accepted" value=${compact(rollouts.accepted)} unit="rollouts" note=${known(rollouts.issued) ? percent(rollouts.issued ? lost(rollouts) / rollouts.issued : 0) + " of issued dropped" : "\u00a0"} spark=${spark("accept_share")} />
  </div>`;
}

const lost = (rollouts) => Object.values(rollouts.dropped || {}).reduce((sum, number) => sum + number, 0);
const spent = (overview) => (known(overview.spent_usd) ? usd(overview.spent_usd) + " spent" : "no prices set");

function Workers({ workers = {} }) {
  const others = ["standby", "lost", "quarantined", "drained", "banned"].filter((state) => workers[state]);
  const note = others.map((state) => `${workers[state]} ${state}`).join(", ") || (workers.total ? "all of them" : "none is connected");
  return html`<a class="tile" href=${href("workers")}><span class="tile-label">Workers on</span>
    <span class="tile-value">${count(workers.on)}<span class="unit">${"\u202f"}of ${count(workers.total)}</span></span>
    <span class="tile-note" title=${note}>${note}</span>
    <span class="worker-bar" aria-hidden="true">${["on", "standby", "lost", "quarantined", "drained", "banned"].map((state) => workers[state] > 0 && html`<i key=${state} class=${state} style=${{ flexGrow: workers[state] }}></i>`)}</span></a>`;
}

// ---------------------------------------------------------------- charts

function Reward({ overview }) {
  const points = overview.reward_history || [];
  const last = points.at(-1)?.[0];
  const [steps, series] = useMemo(() => {
    const values = points.map(([, value]) => value);
    return [points.map(([step]) => step), [
      { label: "batch", values, soft: true, width: 1 },
      { label: "smoothed", values: smoothed(values), colour: "series-1", width: 2.2 },
    ]];
  }, [points.length, last]);
  return html`<${Card} title="Reward" note="mean of each batch, by learner step" actions=${html`<a class="small" href=${href("run")}>Whole run</a>`}>
    <${TimeChart} times=${steps} series=${series} format=${(value) => fixed(value)} label="Reward by learner step" xKind="step" height=${196} />
  <//>`;
}

const FLEET = [
  ["tokens_per_s", "Tokens per second", "by worker", compact, "slowest", true],
  ["version_lag", "Version lag", "versions behind the newest", (value) => fixed(value, 1), "furthest", true],
  ["t_bcast_s", "Dissemination latency", "T_bcast, by worker", duration, "slowest", true],
  ["accept_share", "Accepted", "share of each worker's rollouts", percent, "lowest", false, 1],
  ["last_seen_s", "Last seen", "silence of workers", duration, "longest", true],
  ["upload_bytes_per_s", "Upload", "by worker", rate, "slowest", true],
  ["age_steps", "Age trained", "learner steps", (value) => fixed(value, 1), "oldest", true],
  ["mismatch_kl", "Mismatch KL", "engine against learner, nats per token", undefined, "worst", true],
  ["learner_utilisation", "Learner utilisation", "share of its time, last 20 steps", percent, "", true, 1],
  ["usd_per_hour", "Cost per hour", "of workers that are on", usd, "", true],
];

function Fleet({ history }) {
  const shown = FLEET.filter(([name]) => !history || history.series[name]?.mean.some(known));
  return shown.map((one) => html`<${FleetChart} key=${one[0]} history=${history} spec=${one} />`);
}

function FleetChart({ history, spec: [name, title, note, format, worst, fromZero, top] }) {
  const of = history?.series[name];
  const series = useMemo(() => fleetSeries(of, { worst: worst || "worst", mean: worst ? "mean" : "now" }), [of]);
  return html`<${Card} title=${title} note=${note}>
    <${TimeChart} times=${of ? history.times_unix_s : []} series=${series} format=${format} label=${title + ", " + note} sync="fleet" fromZero=${fromZero} top=${top} height=${150} />
  <//>`;
}
