// The planner's preview of a change: a sentence, the figures now and then, and warnings.
import { html, useEffect, useState } from "/web/vendor/htm-preact.js";
import { post } from "/web/api.js";
import { duration, fixed, count, percent, usd, known, NOTHING } from "/web/format.js";
import { Icon, Problem } from "/web/parts.js";

const SETTLE_MS = 350; // of typing
const DEADLINE_MS = 30_000; // the planner may search for a while

// [key, label, format, +1 if more is better, -1 if less is better, 0 if it depends]
const FIGURES = [
  ["utilisation", "Learner busy", (value) => percent(value, 1), 1],
  ["steps_per_hour", "Steps per hour", (value) => count(value), 1],
  ["usd_per_hour", "Cost per hour", usd, -1],
  ["workers_on", "Workers on", count, 0],
  ["t_bcast_s", "T_bcast", duration, -1],
  ["staleness_needed", "S needed", (value) => fixed(value, 0), -1],
];

/** {data, error, loading} of a preview, requested again after the body has changed and settled. A body of null requests nothing. */
export function usePreview(body) {
  const key = body === null ? "" : JSON.stringify(body);
  const [state, setState] = useState({ data: null, error: null, loading: false });
  useEffect(() => {
    if (!key) return setState({ data: null, error: null, loading: false });
    let isWanted = true;
    setState((before) => ({ ...before, loading: true }));
    const timer = setTimeout(async () => {
      try {
        const data = await post("/api/v1/acts/settings/preview", JSON.parse(key), { deadlineMs: DEADLINE_MS });
        if (isWanted) setState({ data, error: null, loading: false });
      } catch (error) {
        if (isWanted) setState({ data: null, error, loading: false });
      }
    }, SETTLE_MS);
    return () => { isWanted = false; clearTimeout(timer); };
  }, [key]);
  return state;
}

/** The result of `usePreview`; old figures stay, paler, until new ones arrive. */
export function Preview({ data, error, loading }) {
  if (error) {
    return html`<div class="preview"><p class="muted">There is no preview, but you can still make the change.</p><${Problem} error=${error} /></div>`;
  }
  const lines = data ? FIGURES.filter(([key]) => known(data.then[key]) && (key !== "usd_per_hour" || data.now[key] || data.then[key])) : []; // there may be none before the run is measured
  return html`<div class=${"preview" + (loading ? " busy" : "")} aria-busy=${String(loading)} aria-live="polite">
    <p class="preview-sentence">${data ? data.sentence : "Calculating the preview…"}</p>
    ${data && data.warnings.map((text) => html`<p class="preview-warning" key=${text}><${Icon} name="warning" /><span>${text}</span></p>`)}
    ${lines.length > 0 && html`<table class="preview-table"><thead><tr><th scope="col">Predicted</th><th scope="col">Now</th><th scope="col">Then</th><th scope="col">Change</th></tr></thead>
      <tbody>${lines.map((figure) => html`<${Line} key=${figure[0]} figure=${figure} now=${data.now[figure[0]]} then=${data.then[figure[0]]} />`)}</tbody></table>`}
  </div>`;
}

function Line({ figure: [, words, written, better], now, then }) {
  const isSame = !known(now) || !known(then) || written(now) === written(then);
  const tone = isSame || !better ? "" : (then - now) * better > 0 ? "good" : "bad";
  const change = isSame ? "" : (then > now ? "+" : "−") + written(Math.abs(then - now));
  return html`<tr><th scope="row">${words}</th><td>${known(now) ? written(now) : NOTHING}</td><td class="then">${known(then) ? written(then) : NOTHING}</td>
    <td class=${tone}>${change}</td></tr>`;
}
