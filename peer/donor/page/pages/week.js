// A week of local time as a grid: seven days, 24 hours, filled where the machine may be used.
import { html } from "/web/vendor/htm-preact.js";

const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY_MINUTES = 1440;
const MARKS = [0, 6, 12, 18, 24];

const two = (number) => String(number).padStart(2, "0");
const timeOf = (minute) => `${two(Math.floor(minute / 60))}:${two(minute % 60)}`;

/** [[begin, end], ...] of one day in its own minutes, from windows in minutes since Monday 00:00. */
function ofDay(windows, day) {
  const [from, to] = [day * DAY_MINUTES, (day + 1) * DAY_MINUTES];
  return windows.map(([begin, end]) => [Math.max(begin, from) - from, Math.min(end, to) - from]).filter(([begin, end]) => end > begin);
}

/** windows: in minutes since Monday 00:00, in order and apart; none: always. */
export function Week({ windows, label, colour = "series-1" }) {
  const now = new Date();
  const today = (now.getDay() + 6) % 7, minute = now.getHours() * 60 + now.getMinutes();
  const open = windows.length ? windows : [[0, 7 * DAY_MINUTES]];
  const summary = windows.length ? DAYS.map((name, day) => [name, ofDay(open, day)]).filter(([, spans]) => spans.length).map(([name, spans]) => `${name} ${spans.map(([begin, end]) => `${timeOf(begin)} to ${timeOf(end)}`).join(", ")}`).join("; ") : "always";
  return html`<figure class="week" role="img" aria-label="${label}: ${summary}">
    <div class="week-days" aria-hidden="true">${DAYS.map((name, day) => html`<span key=${name} class=${day === today ? "today" : ""}>${name}</span>`)}</div>
    <div class="week-grid" aria-hidden="true">
      ${DAYS.map((name, day) => html`<div key=${name} class="week-day">
        ${ofDay(open, day).map(([begin, end]) => html`<div key=${begin} class="week-open" title="${name} ${timeOf(begin)} to ${timeOf(end)}" style=${{ left: `${begin / 14.4}%`, width: `${(end - begin) / 14.4}%`, background: `var(--${colour})` }}></div>`)}
        ${day === today && html`<div class="week-now" style=${{ left: `${minute / 14.4}%` }}></div>`}
      </div>`)}
      ${[6, 12, 18].map((hour) => html`<div key=${hour} class="week-line" style=${{ left: `${(hour / 24) * 100}%` }}></div>`)}
    </div>
    <div class="week-hours" aria-hidden="true">${MARKS.map((hour) => html`<span key=${hour} style=${{ left: `${(hour / 24) * 100}%` }}>${two(hour)}</span>`)}</div>
  </figure>`;
}
