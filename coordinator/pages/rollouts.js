// Rollouts: scored rollouts by reward, age, length, peer, problem and version; one of them; two answers to one problem.
import { html, useCallback, useEffect, useRef, useState } from "/web/vendor/htm-preact.js";
import { get, useRetry, withQuery } from "/web/api.js";
import { count, figure, known, NOTHING, plural } from "/web/format.js";
import { Button, Empty, PageHead, Problem, Select } from "/web/parts.js";
import { go, href, setParams } from "/web/router.js";
import { useFill, VirtualTable } from "/web/table.js";
import { Aside } from "./aside.js";
import { Rollout, Verdict } from "./conversation.js";
import { Typed } from "./typed.js";

const PAGE = 50;
const KEPT_MAX = 2_000; // rollouts in the list; filters find older ones
const LOOKS_MAX = 25; // requests for one page: the coordinator looks at 4,000 rollouts for each
const FILTERS = ["problem", "peer", "version", "reward_min", "reward_max", "age_min", "age_max", "tokens_min", "tokens_max", "wrong"];
const NO_FILTER = Object.fromEntries(FILTERS.map((name) => [name, ""]));
const keyOf = (one) => String(one.rollout_id);
const sampleOf = (one) => `#${one.sample_index}${one.agent ? ` ${one.agent}` : ""}`;

const COLUMNS = [
  { id: "problem", title: "Problem", width: 130, grow: 0.4, cell: (one) => html`<span class="two-lines" title=${one.problem_id}><b>${one.problem_id}</b> <span class="muted">${sampleOf(one)}</span></span>` },
  { id: "beginning", title: "Completion", width: 170, grow: 4, cell: (one) => html`<span title=${one.beginning}>${one.beginning}</span>` },
  { id: "reward", title: "Reward", width: 74, end: true, cell: (one) => figure(one.reward) },
  { id: "verdict", title: "Verdict", width: 110, rank: 3, cell: (one) => html`<${Verdict} one=${one} />` },
  { id: "version", title: "Version", hint: "The oldest that generated a part of it", width: 72, end: true, cell: (one) => one.version },
  { id: "age", title: "Age", hint: "Learner steps between its version and the step that trained on it", width: 78, end: true, rank: 1, cell: (one) => (known(one.age) ? one.age : html`<span class="muted">${one.state === "dropped" ? "dropped" : NOTHING}</span>`) },
  { id: "tokens", title: "Tokens", width: 70, end: true, rank: 2, cell: (one) => count(one.tokens) },
  { id: "turns", title: "Segments", hint: "Turns of the model, of tools and of users", width: 84, end: true, rank: 5, cell: (one) => one.turns },
  { id: "peer", title: "Peer", width: 120, grow: 0.3, rank: 4, cell: (one) => html`<span class="muted" title=${one.peer}>${one.peer}</span>` },
];

function card(one) {
  return html`<div class="worker-card"><div class="line"><b class="two-lines">${one.problem_id} <span class="muted">${sampleOf(one)}</span></b><${Verdict} one=${one} /></div>
    <div class="line"><span class="cut">${one.beginning}</span><b>${figure(one.reward)}</b></div>
    <div class="line muted"><span class="cut">${one.peer}</span><span>version ${one.version}${known(one.age) ? `, age ${one.age}` : ""}, ${plural(one.tokens, "token")}${one.turns > 1 ? ` in ${one.turns} segments` : ""}</span></div></div>`;
}

export function Page({ params, rest }) {
  return rest[0] === "compare" ? html`<${Compare} params=${params} />` : html`<${List} params=${params} openedId=${rest[0] || null} />`;
}

function List({ params, openedId }) {
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, params[name] || ""]));
  const { rows, before, error, busy, load } = useRollouts(wanted);
  const frame = useRef(null);
  useFill(frame);
  const open = (id) => go(id ? `rollouts/${id}` : "rollouts", params);
  const none = html`<${Empty} title=${before ? "No rollout matches so far" : "No rollout matches"}><${Button} onClick=${() => setParams(NO_FILTER)}>Show all<//><//>`;
  return html`<${PageHead} title="Rollouts" note="scored completions of training, newest first"><${Button} busy=${busy} onClick=${() => load(null)}>Refresh<//><//>
    <div class="fleet" ref=${frame} onKeyDown=${(event) => { if (event.key === "Escape" && openedId && !event.defaultPrevented) open(null); }}>
      <div class="fleet-main card flush">
        <${Filters} wanted=${wanted} />
        ${error && html`<${Problem} error=${error} />`}
        <${VirtualTable} label="Rollouts" columns=${COLUMNS} rows=${rows} keyOf=${keyOf} sort=${null} card=${card} cardHeight=${90} opened=${openedId} onOpen=${open}
          empty=${busy ? html`<p class="muted">Reading the ledger…</p>` : !error && none} />
        <${Foot} rows=${rows} before=${before} busy=${busy} load=${load} />
      </div>
      ${openedId && html`<${Aside} wide title=${`Rollout ${openedId}`} onClose=${() => open(null)}><${Rollout} key=${openedId} id=${openedId} storied /><//>`}
    </div>`;
}

function Foot({ rows, before, busy, load }) {
  const more = before !== null && rows.length < KEPT_MAX;
  return html`<div class="table-foot"><span class="muted" role="status">${plural(rows.length, "rollout")}${more ? "" : " in all"}</span>${more && html`<${Button} busy=${busy} onClick=${() => load(before)}>${rows.length ? "Load older" : "Search older"}<//>`}</div>`;
}

/** Rollouts that match: {rows, before, error, busy, load(before)}. A page of the API may be empty and have older ones. */
function useRollouts(wanted) {
  const key = JSON.stringify(wanted);
  const [state, setState] = useState({ rows: [], before: null, error: null, busy: true });
  const turn = useRef(0);
  const load = useCallback(async (from) => {
    const mine = (turn.current += 1);
    setState((is) => ({ ...is, rows: from ? is.rows : [], error: null, busy: true }));
    try {
      for (let looks = 1, before = from, found = 0; mine === turn.current; looks += 1) {
        const page = await get(withQuery("/api/v1/rollouts", { ...JSON.parse(key), before, limit: PAGE }));
        if (mine !== turn.current) return;
        found += page.rollouts.length;
        before = page.next_before;
        const done = before === null || found >= PAGE || looks >= LOOKS_MAX;
        setState((is) => ({ rows: [...is.rows, ...page.rollouts], before, error: null, busy: !done }));
        if (done) return;
      }
    } catch (error) {
      if (mine === turn.current) setState((is) => ({ ...is, error, busy: false }));
    }
  }, [key]);
  useEffect(() => { load(null); return () => { turn.current += 1; }; }, [load]);
  useRetry(state.rows.length ? null : state.error, useCallback(() => load(null), [load]));
  return { ...state, load };
}

function Filters({ wanted }) {
  const typed = (name, label, more = {}) => html`<${Typed} class="input rollout-filter" aria-label=${label} placeholder=${label} value=${wanted[name]} onTyped=${(text) => setParams({ [name]: text.trim() })} ...${more} />`;
  const end = (name, label, text) => html`<${Typed} class="input" type="number" step=${name.startsWith("reward") ? "any" : 1} min=${name.startsWith("reward") ? undefined : 0} aria-label=${label} placeholder=${text} value=${wanted[name]} onTyped=${(value) => setParams({ [name]: value })} />`;
  const range = (name, label) => html`<span class="range">${label} ${end(`${name}_min`, `Lowest ${label.toLowerCase()}`, "min")}${end(`${name}_max`, `Highest ${label.toLowerCase()}`, "max")}</span>`;
  const isWrong = wanted.wrong === "true";
  return html`<div class="fleet-bar" role="search">
    ${typed("problem", "Problem", { type: "search", "data-search": true })}
    ${typed("peer", "Peer", { type: "search" })}
    ${typed("version", "Version", { type: "number", min: 0 })}
    ${range("reward", "Reward")}${range("age", "Age")}${range("tokens", "Tokens")}
    <button type="button" class="chip" aria-pressed=${String(isWrong)} onClick=${() => setParams({ wrong: isWrong ? "" : "true" })}>Not correct</button>
  </div>`;
}

/** Two answers to one problem side by side; by default the newest, and the newest of another version. */
function Compare({ params }) {
  const { rows, before, error, busy, load } = useRollouts({ problem: params.problem || "" });
  const first = params.a || (rows.length ? keyOf(rows[0]) : "");
  const version = rows.find((one) => keyOf(one) === first)?.version;
  const others = rows.filter((one) => keyOf(one) !== first);
  const second = params.b || keyOf(others.find((one) => one.version !== version) || others[0] || { rollout_id: "" });
  const side = (name, id, label) => html`<section class="card" aria-label=${label}>${id
    ? html`<${Rollout} key=${id} id=${id}><${Select} label=${label} value=${id} options=${optionsOf(rows, id)} onChange=${(value) => setParams({ [name]: value })} /><//>`
    : html`<${Empty} title=${busy ? "Reading the ledger…" : "No other answer to this problem was found"} />`}</section>`;
  return html`<${PageHead} title="Rollouts" note=${`answers to ${params.problem || "any problem"}`}>
      <a class="button" href=${href("rollouts", { problem: params.problem })}>List all</a>${before !== null && html`<${Button} busy=${busy} onClick=${() => load(before)}>Search older<//>`}<//>
    ${error && html`<${Problem} error=${error} />`}
    <div class="versus">${side("a", first, "One answer")}${side("b", second, "Another answer")}</div>`;
}

function optionsOf(rows, id) {
  const options = rows.map((one) => [keyOf(one), `version ${one.version}, sample ${one.sample_index}${one.agent ? ` (${one.agent})` : ""}, reward ${figure(one.reward)}`]);
  return options.some(([key]) => key === id) ? options : [[id, `rollout ${id}`], ...options];
}
