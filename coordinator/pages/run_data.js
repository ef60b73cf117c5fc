// A run's steps as charts want them: columns by name, both runs over the same steps, parts of an age. No screen here.
import { known } from "/web/format.js";
import { overlaid, smoothed } from "/web/chart_parts.js";

export const AGE_PARTS = [["train_s", "train"], ["broadcast_s", "broadcast"], ["queue_s", "queue"], ["generate_s", "generate"], ["return_s", "return"]];
export const STEP_PARTS = [["wait_s", "waiting"], ["train_s", "training"], ["behaviour_s", "log-probabilities"], ["publish_s", "publishing"], ["checkpoint_s", "checkpoint"], ["compile_s", "compiling"], ["other_s", "other"]];
const EVALUATION = /^eval_([a-z0-9_-]+)_pass_at_(\d+)$/;

/** {steps: [...], of: {NAME: [...]}} from an answer of /api/v1/steps. */
export function tableOf(answer) {
  const { columns = [], rows = [] } = answer || {};
  const of = Object.fromEntries(columns.map((name, index) => [name, rows.map((row) => row[index] ?? null)]));
  return { steps: of.step || [], of };
}

/** The answer with the rows of a later message; columns may have been added. Steps that it already has stay. */
export function withRows(answer, message) {
  const last = stepOf(answer, answer.rows.at(-1));
  const rows = message.rows.filter((row) => stepOf(message, row) > last);
  if (!rows.length) return answer;
  const columns = [...answer.columns, ...message.columns.filter((name) => !answer.columns.includes(name))];
  const place = columns.map((name) => message.columns.indexOf(name));
  return { ...answer, columns, rows: [...answer.rows, ...rows.map((row) => place.map((index) => (index < 0 ? null : row[index])))] };
}

/** Whether steps between the answer and the message are missing, as after a lost connection. */
export function missesRows(answer, message) {
  return Boolean(message.rows.length) && stepOf(message, message.rows[0]) > stepOf(answer, answer.rows.at(-1)) + 1;
}

function stepOf({ columns }, row) {
  return row ? row[columns.indexOf("step")] : -1;
}

/** Numbers of a column, null where it has none. */
export function numbers(table, name) {
  return table.of[name] || table.steps.map(() => null);
}

export const has = (table, name) => Boolean(table.of[name]?.some(known));

/** {SET: [{k, values, band}]} of the evaluations during training. */
export function evaluations(table) {
  const sets = {};
  for (const name of Object.keys(table.of)) {
    const match = EVALUATION.exec(name);
    if (!match || !has(table, name)) continue;
    const [, set, k] = match;
    const band = [name + "_low", name + "_high"].map((end) => numbers(table, end));
    (sets[set] ||= []).push({ k: Number(k), values: table.of[name], band: band[0].some(known) ? band : undefined });
  }
  for (const found of Object.values(sets)) found.sort((one, other) => one.k - other.k);
  return sets;
}

/** The columns of the named parts of rewards. */
export const rewardParts = (table) => Object.keys(table.of).filter((name) => name.startsWith("reward_part_") && has(table, name)).sort();

/** One component of the ages, by step; the column age_split holds an object per row. */
export function agePart(table, part) {
  return numbers(table, "age_split").map((split) => split?.[part] ?? null);
}

/** Lines of one figure: of this run, raw and smoothed, and of the other run: [steps, series]. */
export function figureLines(table, other, name, { smooth, label = "step", otherLabel = "" }) {
  const own = numbers(table, name);
  if (!other) return [table.steps, lines(own, smooth, label)];
  const [steps, mine, theirs] = overlaid(table.steps, own, other.steps, numbers(other, name));
  const line = { label: otherLabel, values: smooth ? smoothed(theirs) : theirs, colour: "series-3", width: 1.8, dash: true, spanGaps: true };
  return [steps, [...lines(mine, smooth, label), line]];
}

function lines(values, smooth, label) {
  if (!smooth) return [{ label, values, colour: "series-1", spanGaps: true }];
  return [
    { label, values, soft: true, width: 1, spanGaps: true },
    { label: "smoothed", values: smoothed(values), colour: "series-1", width: 2, spanGaps: true },
  ];
}
