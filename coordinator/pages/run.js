// Run: the learner's figures by step, alone or beside another run.
import { html, useEffect, useMemo, useState } from "/web/vendor/htm-preact.js";
import { get, token, useGet, withQuery } from "/web/api.js";
import { Empty, PageHead, Problem, Segments, Select } from "/web/parts.js";
import { day, plural } from "/web/format.js";
import { setParams } from "/web/router.js";
import { useMessages } from "/web/stream.js";
import { AgeSplit, BatchAge, Evaluation, Figure, FIGURES, Mismatch, Profile, Staleness, StepTimes } from "./run_charts.js";
import { Outcomes } from "./outcomes.js";
import { evaluations, missesRows, rewardParts, tableOf, withRows } from "./run_data.js";

const POINTS = 2000;

export function Page({ overview, params }) {
  const runs = useGet("/api/v1/runs");
  const all = runs.data?.runs || [];
  const current = all.find((run) => run.current)?.name || "";
  const name = params.run || current;
  const smooth = params.raw !== "1";
  const own = useSteps(name, name === current);
  const other = useSteps(params.with || "", params.with === current);
  const table = useMemo(() => tableOf(own.answer), [own.answer]);
  const beside = useMemo(() => (params.with && other.answer ? tableOf(other.answer) : null), [params.with, other.answer]);
  const error = runs.error || own.error || other.error;
  return html`
    <${PageHead} title="Run">
      <${Select} hideLabel label="Run" value=${name} options=${all.map(optionOf)} onChange=${(run) => setParams({ run: run === current ? "" : run })} />
      <${Select} hideLabel label="Compare with" value=${params.with || ""} options=${[["", "Compare with …"], ...all.filter((run) => run.name !== name).map(optionOf)]} onChange=${(run) => setParams({ with: run })} />
      <${Segments} label="Lines" value=${smooth ? "smooth" : "raw"} options=${[["smooth", "Smoothed"], ["raw", "Raw"]]} onChange=${(value) => setParams({ raw: value === "raw" ? "1" : "" })} />
    <//>
    ${error && html`<${Problem} error=${error} />`}
    ${!error && own.answer && !table.steps.length && html`<${Empty} icon="run" title="No steps have been trained yet">Figures appear with the first step. The line above shows what the run is waiting for.<//>`}
    ${table.steps.length > 0 && html`<${Charts} table=${table} other=${beside} otherLabel=${params.with} smooth=${smooth} overview=${name === current ? overview : null} />`}`;
}

const optionOf = (run) => [run.name, [run.name, run.current ? "now" : day(run.began_unix_s), !run.current && plural(run.steps, "step")].filter(Boolean).join(" · ")];

/** {answer, error}: the steps of a run, followed while it is in progress. A name of "" requests nothing. */
function useSteps(name, following) {
  const [state, setState] = useState({ answer: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => token.subscribe(() => setRound((number) => number + 1)), []);
  useEffect(() => {
    let here = true;
    setState({ answer: null, error: null });
    if (!name) return undefined;
    get(withQuery("/api/v1/steps", { run: name, from_step: 0, points: POINTS })).then(
      (answer) => here && setState({ answer, error: null }),
      (error) => here && setState({ answer: null, error }),
    );
    return () => { here = false; };
  }, [name, round]);
  useMessages(following ? ["steps"] : [], (_topic, message) => {
    setState((before) => {
      if (!before.answer || message.run !== before.answer.run) return before;
      if (missesRows(before.answer, message)) setRound((number) => number + 1);
      return { ...before, answer: withRows(before.answer, message) };
    });
  });
  return state;
}

function Charts({ table, other, otherLabel, smooth, overview }) {
  const sets = useMemo(() => evaluations(table), [table]);
  const shared = { table, other, otherLabel, smooth };
  const [reward, ...figures] = FIGURES;
  const names = Object.keys(sets);
  return html`<div class="stack">
    <div class=${names.length ? "grid-2" : "stack"}>
      <${Figure} ...${shared} spec=${reward} height=${210} />
      ${names.slice(0, 1).map((set) => html`<${Evaluation} key=${set} ...${shared} set=${set} found=${sets[set]} height=${210} />`)}
    </div>
    <div class="grid-3">
      ${names.slice(1).map((set) => html`<${Evaluation} key=${set} ...${shared} set=${set} found=${sets[set]} />`)}
      ${rewardParts(table).map((name) => html`<${Figure} key=${name} ...${shared} spec=${{ name, title: "Reward: " + name.slice(12).replaceAll("_", " "), note: "mean of this part in each batch", format: (value) => value.toFixed(3) }} />`)}
      ${figures.map((spec) => html`<${Figure} key=${spec.name} ...${shared} spec=${spec} />`)}
      <${Mismatch} ...${shared} />
      <${BatchAge} table=${table} overview=${overview} />
    </div>
    ${overview?.learner_profile && html`<${Profile} profile=${overview.learner_profile} />`}
    <h2 class="section">Staleness</h2>
    <div class="grid-1-2">
      <${Staleness} table=${table} overview=${overview} />
      <${AgeSplit} table=${table} />
    </div>
    <h2 class="section">Where steps and rollouts go</h2>
    <div class="grid-2"><${StepTimes} table=${table} />${overview && html`<${Outcomes} rollouts=${overview.rollouts} episodes=${overview.episodes} />`}</div>
  </div>`;
}
