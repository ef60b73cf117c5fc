// Charts on uPlot: lines over time or over steps, with what is under the pointer, for mouse, touch and keyboard.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { axes, drawLines, isSingle, shownAt, stackedColumns, xRange } from "./chart_parts.js";
import { clock, count, figure, known, NOTHING } from "./format.js";
import { useStore } from "./store.js";
import { colour, shade } from "./theme.js";

let loading = null;
/** uPlot comes as a classic script; it is fetched when the first chart is shown. */
function loadUplot() {
  loading ??= new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: new URL("./vendor/uplot.js", import.meta.url).href });
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => { loading = null; reject(new Error("uplot.js could not be loaded")); };
    document.head.append(script);
  });
  return loading;
}

const STACK_ALPHA = 0.42;
const alpha = (rgb, share) => rgb.replace("rgb(", "rgba(").replace(")", `, ${share})`);
const X_NAMES = { time: (x) => clock(x), step: (x) => "step " + count(x) };

/**
 * @param {object} props
 * @param {number[]} props.times ascending: Unix seconds, or learner steps where xKind is "step"
 * @param {Array<object>} props.series {label, values, colour (a token), who (names, beside values), width, dash, fill, soft (drawn faintly), points,
 *   spanGaps, band: [low, high]}; values are numbers or null, as many as times
 * @param {(value: number) => string} props.format of values
 * @param {string} props.label what is shown, for a screen reader
 * @param {boolean} props.stacked series are parts of a whole, the first at the bottom
 * @param {boolean} props.fromZero the scale begins at 0
 * @param {Array<object>} props.lines {value, label, colour}: limits, drawn across
 * @param {string} props.sync charts of one key show the same moment
 */
export function TimeChart({ times, series, format = figure, label = "", height = 172, xKind = "time", stacked, fromZero, lines = [], sync, top }) {
  const mount = useRef(null);
  const newest = useRef({});
  const theme = useStore(shade);
  const [at, setAt] = useState(null); // index under the pointer
  const columns = useMemo(() => [times, ...(stacked ? stackedColumns(series) : series.flatMap(columnsOf))], [times, series, stacked]);
  newest.current = { columns, series, format, lines, stacked, fromZero, top };
  const shape = JSON.stringify([theme, stacked, xKind, height, series.map((one) => [one.label, one.colour, one.width, one.dash, one.soft, Boolean(one.band)])]);
  const plot = usePlot(mount, newest, { shape, height, xKind, sync, onCursor: setAt });
  const index = at === null ? times.length - 1 : Math.min(at, times.length - 1);
  const shown = shownAt(series, index, format, { newest: at === null });
  const spoken = label + (times.length ? ": " + shown.map((one) => [one.label, one.text, one.who].filter(Boolean).join(" ")).join(", ") : ": no data yet");
  return html`<figure class="chart" tabindex="0" role="img" aria-label=${spoken} onKeyDown=${(event) => moveCursor(event, plot.current, times, at)} onBlur=${() => plot.current?.setCursor({ left: -10, top: -10 }, true, true)}>
    <${Legend} shown=${shown} series=${series} />
    <div class="chart-plot" ref=${mount} style=${{ height: height + "px" }}>
      ${times.length === 0 && html`<p class="chart-nothing">no data yet</p>`}
      ${at !== null && times.length > 0 && html`<span class="chart-moment" style=${{ "--x": cursorX(plot.current) + "px" }}>${X_NAMES[xKind](times[index])}</span>`}
    </div>
  </figure>`;
}

/** The plot in an element, rebuilt if its shape changes. Out of sight it is redrawn only when it scrolls into view. */
function usePlot(mount, newest, { shape, height, xKind, sync, onCursor }) {
  const plot = useRef(null);
  const sight = useRef({ inSight: true, drawn: null });
  const draw = () => {
    const { columns } = newest.current;
    if (!plot.current || !sight.current.inSight || sight.current.drawn === columns) return;
    sight.current.drawn = columns;
    plot.current.setData(columns);
  };
  useEffect(() => {
    let here = true;
    const sizes = new ResizeObserver(([entry]) => plot.current?.setSize({ width: Math.floor(entry.contentRect.width), height }));
    const sights = new IntersectionObserver((entries) => { sight.current.inSight = entries.at(-1).isIntersecting; draw(); }, { rootMargin: "100px" });
    loadUplot().then((uPlot) => {
      if (!here || !mount.current) return;
      sight.current.drawn = newest.current.columns;
      const options = optionsOf({ uPlot, newest, height, xKind, sync, width: mount.current.clientWidth, onCursor });
      plot.current = new uPlot(options, sight.current.drawn, mount.current);
      sizes.observe(mount.current);
      sights.observe(mount.current);
    }, () => {});
    return () => {
      here = false;
      sizes.disconnect();
      sights.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(draw, [newest.current.columns]);
  return plot;
}

const cursorX = (plot) => (plot ? plot.cursor.left + plot.bbox.left / devicePixelRatio : 0);
const columnsOf = (one) => (one.band ? [one.values, one.band[0], one.band[1]] : [one.values]);

/** The legend: labels and values of the lines, the newest or those under the pointer. */
function Legend({ shown, series }) {
  return html`<div class="chart-legend ${series.length > 2 || series.some((one) => one.band) ? "wrap" : ""}">
    ${shown.map((one, index) => html`<span key=${one.label} class="chart-key"><span class="chart-dash ${series[index].dash ? "dashed" : ""}" style=${{ borderColor: `var(--${series[index].colour || "series-1"})`, opacity: series[index].soft ? 0.45 : 1 }}></span><span class="chart-label">${one.label}</span><b>${one.text}</b>${one.who && html`<span class="chart-who" title=${one.who}>${one.who}</span>`}</span>`)}
  </div>`;
}

function moveCursor(event, plot, times, at) {
  if (!plot || !times.length) return;
  const from = at ?? times.length - 1;
  const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: times.length - 1, PageUp: from - 20, PageDown: from + 20 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const index = Math.max(0, Math.min(times.length - 1, to));
  plot.setCursor({ left: plot.valToPos(times[index], "x"), top: plot.over.clientHeight / 2 }, true, true);
}

function optionsOf({ uPlot, newest, height, xKind, sync, width, onCursor }) {
  const { series, stacked } = newest.current;
  const ordered = stacked ? [...series].reverse() : series;
  const bands = [];
  const drawn = [{}];
  ordered.forEach((one, place) => {
    drawn.push(lineOf(one, stacked && place === ordered.length - 1));
    if (stacked && place > 0) bands.push({ series: [place, place + 1], fill: alpha(colour(ordered[place - 1].colour), STACK_ALPHA) });
    if (!one.band) return;
    const soft = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
    drawn.push(soft, soft);
    bands.push({ series: [drawn.length - 1, drawn.length - 2], fill: alpha(colour(one.colour), 0.16) });
  });
  return {
    width, height, bands, series: drawn, padding: [8, 14, 0, 0], legend: { show: false },
    axes: axes({ xKind, muted: colour("muted"), grid: alpha(colour("line-strong"), 0.45), format: (value) => newest.current.format(value) }),
    scales: { x: { time: xKind === "time", range: (plot) => xRange(plot.data[0]) }, y: { range: (_plot, low, high) => yRange(newest.current, low, high) } },
    cursor: { sync: sync && { key: sync, setSeries: false }, drag: { x: false, y: false }, y: false, points: { size: 7, width: 2 }, focus: { prox: -1 } },
    hooks: { draw: [(plot) => drawLines(plot, newest.current.lines, colour, uPlot.pxRatio)], setCursor: [(plot) => onCursor(plot.cursor.idx ?? null)] },
  };
}

function lineOf(one, bottom) {
  const full = colour(one.colour || "series-1");
  const stroke = one.soft ? alpha(full, 0.42) : full;
  const fill = bottom ? alpha(full, STACK_ALPHA) : one.fill ? alpha(full, 0.09) : undefined;
  return {
    stroke, width: one.width || 1.6, dash: one.dash ? [4, 3] : undefined, fill,
    spanGaps: Boolean(one.spanGaps || one.points), points: { show: (plot, index) => Boolean(one.points) || isSingle(plot.data[index]), size: 6, fill: stroke, stroke },
  };
}

/** A range for all values and limits, never so narrow that noise fills the chart. */
function yRange({ fromZero, lines, top }, low, high) {
  if (!known(low)) return [0, 1];
  for (const one of lines) { low = Math.min(low, one.value); high = Math.max(high, one.value); }
  if (fromZero) low = Math.min(0, low);
  if (top !== undefined) high = Math.max(high, top);
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [fromZero && low === 0 ? 0 : low - room, top !== undefined && high === top ? high : high + room];
}

/** The mean of the fleet with its worst member. of: {mean, worst, worst_who, unit} of the history. */
export function fleetSeries(of, { mean = "mean", worst = "worst" } = {}) {
  if (!of) return [];
  const lines = [{ label: mean, values: of.mean, colour: "series-1", fill: true }];
  if (of.worst?.some(known)) lines.push({ label: worst, values: of.worst, who: of.worst_who, colour: "worst", width: 1.3 });
  return lines;
}

const TEXTS_MAX = 9; // columns that can have a figure each side by side

/**
 * Columns over whole values of x. If there are many, only the highest is labelled with its figure.
 * @param {Array<{label: string, value: number, text: string, tone?: string}>} bars tone: "worst" or nothing
 */
export function Histogram({ bars, label, height = 150, axis }) {
  const most = Math.max(...bars.map((bar) => bar.value), 0) || 1;
  const summary = bars.filter((bar) => bar.value > 0).map((bar) => bar.label + ": " + bar.text).join(", ");
  const every = Math.ceil(bars.length / TEXTS_MAX);
  return html`<figure class="histogram ${every > 1 ? "many" : ""}" role="img" aria-label="${label}: ${summary || NOTHING}">
    <div class="histogram-bars" style=${{ height: height + "px" }} aria-hidden="true">
      ${bars.map((bar, index) => html`<div key=${bar.label} class="histogram-bar ${bar.tone || ""}" title="${bar.label}: ${bar.text}">
        <span class="histogram-text">${every === 1 || bar.value === most ? bar.text : ""}</span><div class="histogram-column" style=${{ "--share": bar.value / most }}></div><span class="histogram-label">${index % every === 0 ? bar.label : "\u00a0"}</span></div>`)}
    </div>
    ${axis && html`<figcaption>${axis}</figcaption>`}
  </figure>`;
}
