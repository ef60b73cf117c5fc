// The charts of the Run page, each a card.
import { html, useMemo } from "/web/vendor/htm-preact.js";
import { Card } from "/web/parts.js";
import { TimeChart } from "/web/charts.js";
import { bytes, compact, duration, figure, fixed, known, percent, plural, shortId, words } from "/web/format.js";
import { Ages } from "./outcomes.js";
import { agePart, AGE_PARTS, figureLines, has, numbers, STEP_PARTS } from "./run_data.js";

const SYNC = "run";
const PART_COLOURS = ["series-1", "series-2", "series-3", "series-4", "series-5", "series-6", "line-strong"];

/** Figures with a chart of their own: name of the column, title, note. */
export const FIGURES = [
  { name: "reward", title: "Reward", note: "mean of each batch", format: (value) => fixed(value, 3) },
  { name: "loss", title: "Loss", note: "of the objective" },
  { name: "kl_k3", title: "KL to behaviour", note: "nats per token", fromZero: true },
  { name: "reference_kl", title: "KL to the reference", note: "nats per token", fromZero: true },
  { name: "teacher_kl", title: "KL to the teacher", note: "nats per token", fromZero: true },
  { name: "entropy", title: "Entropy", note: "of the policy, nats per token", fromZero: true },
  { name: "grad_norm", title: "Gradient norm", note: "before clipping", fromZero: true },
  { name: "learning_rate", title: "Learning rate", note: "of each step", fromZero: true },
  { name: "ratio_mean", title: "Importance ratio", note: "learner to behaviour, mean", format: (value) => fixed(value, 3), lines: [{ value: 1, label: "", colour: "line-strong" }] },
  { name: "clip_fraction", title: "Clip fraction", note: "tokens outside the clip range", format: (value) => percent(value), fromZero: true },
  { name: "value_loss", title: "Value loss", note: "of the critic", fromZero: true },
  { name: "tokens_per_s", title: "Tokens per second", note: "of all workers", format: compact, fromZero: true },
  { name: "train_tokens_per_s", title: "Trained tokens per second", note: "of the learner, prompts included", format: compact, fromZero: true },
  { name: "mfu", title: "Model FLOPs utilisation", note: "of the learner's published peak, while training", format: (value) => percent(value), fromZero: true },
  { name: "device_memory_peak_gib", title: "Device memory", note: "high-water mark of the learner's fullest device, GiB", fromZero: true },
];

/** One figure by learner step; nothing where the run has none. */
export function Figure({ table, other, otherLabel, smooth, spec, height = 160 }) {
  const [steps, series] = useMemo(() => figureLines(table, other, spec.name, { smooth, otherLabel }), [table, other, spec, smooth, otherLabel]);
  if (!has(table, spec.name) && !(other && has(other, spec.name))) return null;
  return html`<${Card} title=${spec.title} note=${spec.note}>
    <${TimeChart} times=${steps} series=${series} format=${spec.format || figure} label=${spec.title + " by learner step"} xKind="step" fromZero=${spec.fromZero} lines=${spec.lines} sync=${SYNC} height=${height} />
  <//>`;
}

/** pass@k of one set of problems, with the ends of its 95 % interval. */
export function Evaluation({ table, set, found, height = 160 }) {
  const series = useMemo(() => found.map(({ k, values, band }, index) => ({ label: "pass@" + k, values, band, points: true, colour: PART_COLOURS[index % PART_COLOURS.length] })), [found]);
  return html`<${Card} title=${"Evaluation: " + words(set)} note="pass@k during training, 95 % interval">
    <${TimeChart} times=${table.steps} series=${series} format=${(value) => fixed(value)} label=${"pass@k on " + words(set)} xKind="step" sync=${SYNC} height=${height} />
  <//>`;
}

/** Engines against the learner: the mean of all tokens, and the peer that differs most. */
export function Mismatch({ table, other, otherLabel }) {
  const [steps, series] = useMemo(() => {
    const [at, lines] = figureLines(table, other, "mismatch_kl_k3", { smooth: false, label: "mean", otherLabel });
    if (other || !has(table, "kl_k3_worst")) return [at, lines];
    const names = numbers(table, "kl_k3_worst_name");
    const who = numbers(table, "kl_k3_worst_peer").map((peer, index) => names[index] || (peer ? shortId(peer) : ""));
    return [at, [{ ...lines[0], fill: true }, { label: "worst", values: numbers(table, "kl_k3_worst"), who, colour: "worst", width: 1.3, spanGaps: true }]];
  }, [table, other, otherLabel]);
  if (!has(table, "mismatch_kl_k3")) return null;
  return html`<${Card} title="Mismatch KL" note="engine against learner, nats per token">
    <${TimeChart} times=${steps} series=${series} label="Mismatch KL by learner step" xKind="step" fromZero sync=${SYNC} height=${160} />
  <//>`;
}

const STAGES = { ordered: "waits for the learner to begin a step", running: "under way", saved: "saved", failed: "failed" };

/** The newest trace of the learner's steps, in one line. */
export function Profile({ profile }) {
  const { stage, steps, first_step: first, steps_done: done, folder, size_bytes: size, failure } = profile;
  return html`<p class="muted profile">Profile of ${known(first) ? `${plural(steps, "step")} from step ${first}` : `the next ${plural(steps, "step")}`}: ${STAGES[stage]}${failure && `: ${failure}`}${stage === "running" && `, ${done} of ${steps}`}${stage === "saved" && `, ${bytes(size)}`}${folder && html`; <span class="mono">${folder}</span> on the learner's machine`}</p>`;
}

/** Ages of the current run, or those at the last step of an older one. */
export function Staleness({ table, overview }) {
  const last = (name) => numbers(table, name).findLast(known) ?? null;
  if (!overview) return html`<${Ages} title="Rollouts by age" histogram=${last("staleness_histogram")} limit=${null} oldest=${last("staleness_max_trained")} height=${206} />`;
  return html`<${Ages} title="Rollouts by age" histogram=${overview.staleness_histogram} limit=${overview.staleness_limit} gate=${overview.staleness?.age_max} oldest=${overview.staleness_max_trained} height=${206} />`;
}

/** Mean age of each batch under the limit. */
export function BatchAge({ table, overview }) {
  const series = useMemo(() => [{ label: "mean", values: agePart(table, "age_steps"), colour: "series-1", fill: true }], [table]);
  if (!series[0].values.some(known)) return null;
  const lines = overview ? [{ value: overview.staleness_limit, label: "S = " + overview.staleness_limit }] : [];
  return html`<${Card} title="Age of batches" note="learner steps">
    <${TimeChart} times=${table.steps} series=${series} format=${(value) => fixed(value, 1)} label="Mean age of each batch" xKind="step" fromZero lines=${lines} sync=${SYNC} height=${160} />
  <//>`;
}

/** Components of the age of rollouts, by the step that trained them. */
export function AgeSplit({ table }) {
  const series = useMemo(() => AGE_PARTS.map(([part, label], index) => ({ label, values: agePart(table, part), colour: PART_COLOURS[index] })), [table]);
  if (!series.some((one) => one.values.some(known))) return null;
  return html`<${Card} title="Age by cause" note="mean time in each stage of a rollout, by step">
    <${TimeChart} times=${table.steps} series=${series} format=${duration} label="Mean age of rollouts by cause" xKind="step" stacked fromZero sync=${SYNC} height=${206} />
  <//>`;
}

export function StepTimes({ table }) {
  const series = useMemo(() => STEP_PARTS.filter(([part]) => numbers(table, part).some((value) => value > 0)).map(([part, label], index) => ({ label, values: numbers(table, part), colour: PART_COLOURS[index] })), [table]);
  if (!series.length) return null;
  return html`<${Card} title="Time of a step" note="seconds by phase of the learner">
    <${TimeChart} times=${table.steps} series=${series} format=${duration} label="Time of a step by phase of the learner" xKind="step" stacked fromZero sync=${SYNC} height=${190} />
  <//>`;
}
