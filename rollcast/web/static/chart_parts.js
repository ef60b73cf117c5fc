// Components of charts: axes, limits across, sums of stacked series, the figures at one place.
import { count, known, NOTHING } from "./format.js";

const SECONDS_CUT = 0.04; // part of the axis at each end in which a label with seconds would be cut off
const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

/** Two axes without ticks; format: of values on the y axis. */
export function axes({ xKind, muted, grid, format }) {
  const common = { stroke: muted, font: FONT, ticks: { show: false }, labelFont: FONT };
  const values = xKind === "time" ? timeLabels : (_plot, splits) => splits.map((split) => (Number.isInteger(split) ? count(split) : ""));
  return [
    { ...common, values, size: 24, gap: 4, space: 72, grid: { show: false }, border: { show: true, stroke: grid, width: 1 } },
    { ...common, values: (_plot, splits) => onceEach(splits.map((split) => (known(split) ? brief(format(split)) : ""))), size: widthOf, gap: 6, space: 28, grid: { stroke: grid, width: 1 } },
  ];
}

/** A label without trailing zeros, for an axis: "2.00k" -> "2k", "$10.00" -> "$10". */
const brief = (text) => text.replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");

/** Labels of a flat line would all be equal: only the first is shown. */
const onceEach = (texts) => texts.map((text, at) => (text === texts[at - 1] ? "" : text));

/** Width of the widest label, so that figures are not cut off and short ones leave no gap. */
function widthOf(plot, values, axisIndex, cycle) {
  const axis = plot.axes[axisIndex];
  if (cycle > 1) return axis._size;
  const longest = (values || []).reduce((found, value) => (value.length > found.length ? value : found), "");
  plot.ctx.save();
  plot.ctx.font = axis.font[0];
  const width = plot.ctx.measureText(longest).width / devicePixelRatio;
  plot.ctx.restore();
  return Math.ceil(width) + 12;
}

function timeLabels(plot, splits) {
  const { min, max } = plot.scales.x, span = max - min, apart_s = splits.length > 1 ? splits[1] - splits[0] : span;
  const options = span > 86400 ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", ...(apart_s < 60 ? { second: "2-digit" } : {}) };
  const isCut = (split) => apart_s < 60 && Math.min(split - min, max - split) < span * SECONDS_CUT; // at either end
  return splits.map((split) => (isCut(split) ? "" : new Date(split * 1000).toLocaleString("en-GB", options)));
}

/** The range of an axis over ascending times. uPlot itself would show 1,000 days after a single one. */
export function xRange(times) {
  if (times.length === 0) return [0, 1];
  return times.length === 1 ? [Math.max(0, times[0] - 1), times[0] + 1] : [times[0], times.at(-1)];
}

/** Whether a series has one value only: a line through it would not be seen. */
export function isSingle(values) {
  const first = values.findIndex(known);
  return first >= 0 && values.findLastIndex(known) === first;
}

/** Limits, each a dashed line with its name above its right end. */
export function drawLines(plot, lines, colour, pixelRatio) {
  const { ctx, bbox } = plot;
  for (const line of lines) {
    const y = Math.round(plot.valToPos(line.value, "y", true)) + 0.5;
    if (y < bbox.top || y > bbox.top + bbox.height) continue;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour(line.colour || "bad");
    ctx.lineWidth = pixelRatio;
    ctx.setLineDash([4 * pixelRatio, 4 * pixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.font = FONT.replace("11px", 11 * pixelRatio + "px");
    ctx.textAlign = "right";
    ctx.fillText(line.label, bbox.left + bbox.width - 4 * pixelRatio, y - 4 * pixelRatio);
    ctx.restore();
  }
}

/** Sums from the bottom up, the highest first, because each is drawn over the one before. */
export function stackedColumns(series) {
  const sums = [];
  let below = null;
  for (const one of series) {
    below = one.values.map((value, index) => (known(value) ? value + (below?.[index] ?? 0) : below?.[index] ?? null));
    sums.push(below);
  }
  return sums.reverse();
}

/** [{label, text, who}] at an index; of points, or where the newest is wanted, the last value up to there. */
export function shownAt(series, index, format, { newest = false } = {}) {
  return series.map((one) => {
    let at = index;
    while ((newest || one.points) && at >= 0 && !known(one.values[at])) at -= 1;
    const value = one.values[at];
    const range = one.band && known(value) ? " (" + format(one.band[0][at]) + " to " + format(one.band[1][at]) + ")" : "";
    return { label: one.label, text: known(value) ? format(value) + range : NOTHING, who: one.who?.[at] || "" };
  });
}

/** Moving mean, the newest value with this weight; the first values count in full (Adam's correction of bias). */
export function smoothed(values, weight = 0.15) {
  let sum = 0, seen = 0;
  return values.map((value) => {
    if (!known(value)) return null;
    sum += weight * (value - sum);
    seen += 1;
    return sum / (1 - (1 - weight) ** seen);
  });
}

/** Both runs over the steps of either: [steps, [values of a], [values of b]], null where a run has no such step. */
export function overlaid(stepsA, valuesA, stepsB, valuesB) {
  const steps = [...new Set([...stepsA, ...stepsB])].sort((one, other) => one - other);
  const pick = (of, values) => {
    const byStep = new Map(of.map((step, index) => [step, values[index]]));
    return steps.map((step) => byStep.get(step) ?? null);
  };
  return [steps, pick(stepsA, valuesA), pick(stepsB, valuesB)];
}
