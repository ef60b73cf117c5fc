// Outcomes of rollouts: trained by age, and dropped by reason.
import { html } from "/web/vendor/htm-preact.js";
import { Badge, Card, Meter, Shares } from "/web/parts.js";
import { Histogram } from "/web/charts.js";
import { count, known, NOTHING, percent, words } from "/web/format.js";

const AGES_SHOWN_MAX = 24;

/** Columns of a Histogram: rollouts by age in steps; those beyond the limit are highlighted. */
export function ageBars(histogram, limit) {
  const total = Object.values(histogram || {}).reduce((sum, number) => sum + number, 0);
  const oldest = Math.max(limit || 0, ...Object.keys(histogram || {}).map(Number));
  const bars = [];
  for (let one = 0; one <= Math.min(oldest, AGES_SHOWN_MAX); one += 1) {
    const number = histogram?.[one] || 0;
    bars.push({ label: String(one), value: number, text: total ? percent(number / total) : NOTHING, tone: one > limit ? "worst" : "" });
  }
  return bars;
}

/** Ages against S, and against the gate where late rollouts are corrected. limit, oldest: null if unknown. */
export function Ages({ title = "Staleness", histogram, limit, gate, oldest, height }) {
  const note = [`oldest ${oldest ?? NOTHING}`, known(limit) && `S = ${limit}`, gate > limit && `gate ${gate}`].filter(Boolean).join(", ");
  return html`<${Card} title=${title} note=${note}>
    <${Histogram} bars=${ageBars(histogram, limit ?? oldest ?? 0)} label="Rollouts trained by age" height=${height} axis="age in learner steps when the batch was formed" />
  <//>`;
}

/** [label, number] of reasons for which rollouts were dropped, the most common first. */
const reasons = (by) => Object.entries(by || {}).filter(([, number]) => number > 0).sort((one, other) => other[1] - one[1]);

/** Episodes with environments: how many go on, their turns, and what ended the others. */
const Episodes = ({ episodes }) => episodes && html`<p class="muted small">Episodes ${count(episodes.open)} open, ${count(episodes.turns)} turns stored. Ended ${reasons(episodes.ended).map(([end, number]) => html`<${Badge} key=${end}>${words(end)} ${count(number)}<//> `)}${reasons(episodes.begun_anew).map(([reason, number]) => html`<${Badge} key=${reason} tone="warn">begun anew: ${words(reason)} ${count(number)}<//> `)}${episodes.failures > 0 && html`<${Badge} tone="warn">environment failures ${count(episodes.failures)}<//>`}</p>`;

export function Outcomes({ rollouts, episodes, className }) {
  if (!rollouts) return null;
  const dropped = reasons(rollouts.dropped), refused = reasons(rollouts.uploads_refused);
  const all = dropped.reduce((sum, [, number]) => sum + number, 0);
  const parts = [["trained", rollouts.trained, "series-1"], ...(rollouts.turns ? [["turns", rollouts.turns, "series-2"]] : []), ["open", rollouts.open, "series-6"], ["dropped", all, "series-3"]];
  return html`<${Card} className=${className} title="Rollouts" note=${`${count(rollouts.issued)} issued, ${count(rollouts.accepted)} accepted`}>
    <${Shares} label="Issued rollouts by outcome" parts=${parts.map(([label, value, colour]) => ({ label, value, text: count(value), colour }))} />
    ${rollouts.turns > 0 && html`<${Episodes} episodes=${episodes} />`}
    <h3 class="why-head">Dropped by reason</h3>
    ${dropped.length === 0 && html`<p class="muted small">None so far.</p>`}
    <ul class="why">${dropped.map(([reason, number]) => html`<li key=${reason}><span>${words(reason)}</span><${Meter} value=${number / all} label=${`${words(reason)}: share of what was dropped`} /><b>${count(number)}</b><span class="muted">${percent(rollouts.issued ? number / rollouts.issued : 0)}</span></li>`)}</ul>
    ${refused.length > 0 && html`<p class="refused muted small">Uploads refused ${refused.map(([reason, number]) => html`<${Badge} key=${reason} tone="warn">${words(reason)} ${count(number)}<//> `)}</p>`}
  <//>`;
}
