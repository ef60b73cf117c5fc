// One rollout as a conversation: its turns, its tokens' probabilities as shades, its score and what it is.
import { html } from "/web/vendor/htm-preact.js";
import { useGet } from "/web/api.js";
import { count, figure, fixed, known, percent, plural, words } from "/web/format.js";
import { Badge, CopyButton, Problem } from "/web/parts.js";
import { href } from "/web/router.js";
import { Story } from "./story.js";

// The least probability of each shade, the lightest first; the first has no colour.
const SHADES = [[0.9, "at least 90 %"], [0.5, "50 %"], [0.1, "10 %"], [0.01, "1 %"], [0, "less"]];
const STATES = { filled: "not trained yet", trained: "trained", dropped: "dropped" };

/** The number of a token's shade: 0 for the most probable tokens. */
export const shadeOf = (logprob) => SHADES.findIndex(([least]) => Math.exp(logprob) >= least);

export const Verdict = ({ one }) => html`<${Badge} tone=${one.exact ? "good" : "bad"} title=${one.detail}>${one.exact ? "correct" : "not correct"}<//>`;

/** Args: id: of the rollout; children: what stands above it; storied: whether its story is shown too. */
export function Rollout({ id, children, storied }) {
  const { data, error, reload } = useGet(`/api/v1/rollouts/${encodeURIComponent(id)}`);
  return html`<div class="detail">${children}
    ${error && html`<${Problem} error=${error} retry=${reload} />`}
    ${!data && !error && html`<p class="muted">Reading the ledger…</p>`}
    ${data && html`<${Facts} one=${data.headline} />
      ${storied && html`<${Acts} one=${data.headline} />`}
      <${Conversation} view=${data} />
      ${storied && html`<${Story} of="rollout" id=${id} factless />`}`}
  </div>`;
}

function Acts({ one }) {
  const address = `${location.origin}${location.pathname}${href(`rollouts/${one.rollout_id}`)}`;
  return html`<p class="rollout-acts"><a class="button" href=${href("rollouts/compare", { problem: one.problem_id, a: one.rollout_id })}>Compare with another answer</a><${CopyButton} text=${address}>Copy the link<//></p>`;
}

function Facts({ one }) {
  const parts = Object.entries(one.parts);
  const facts = [
    ["Reward", html`<b>${figure(one.reward)}</b> <${Verdict} one=${one} />`],
    ...parts.map(([name, value]) => [`· ${words(name)}`, figure(value)]),
    ["Verdict", one.detail],
    ["Problem", html`${one.problem_id}, sample ${one.sample_index}`],
    ["Agent", one.agent],
    ["Version", `${one.version}${known(one.age) ? `, trained at age ${one.age}` : ""}`],
    ["State", STATES[one.state] || words(one.state)],
    ["Peer", one.peer],
    ["Length", `${plural(one.tokens, "token")}${one.turns > 1 ? ` in ${plural(one.turns, "segment")}` : ""}`],
  ];
  return html`<dl class="facts">${facts.filter(([, value]) => value !== "").map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Conversation({ view }) {
  const hasTokens = view.turns.some((turn) => turn.tokens.length);
  return html`${hasTokens
    ? html`<p class="likely-legend">Probability of each token ${SHADES.map(([least, text], at) => html`<span key=${least} class="likely likely-${at}">${text}</span>`)}</p>`
    : html`<p class="muted small">The peers reported no log-probabilities.</p>`}
    <ol class="talk">
      <${Said} role="problem" text=${view.prompt} />
      ${view.turns.map((turn, at) => html`<${Said} key=${at} ...${turn} note=${turn.role === "assistant" ? `version ${turn.version}, ${turn.peer}` : ""} />`)}
      ${view.answer && html`<${Said} role="right answer" text=${view.answer} />`}
    </ol>
    ${view.tokens_left_out > 0 && html`<p class="muted small">${count(view.tokens_left_out)} more tokens are not shown.</p>`}`;
}

function Said({ role, note, text, tokens = [] }) {
  return html`<li class="said by-${role.split(" ")[0]}"><div class="said-head"><b>${role}</b><span class="muted">${note}</span></div>
    <div class="said-text">${tokens.length ? tokens.map(([piece, logprob], at) => html`<${Token} key=${at} piece=${piece} logprob=${logprob} />`) : text || html`<span class="muted">no text</span>`}</div></li>`;
}

const Token = ({ piece, logprob }) => html`<span class="likely likely-${shadeOf(logprob)}" title="${percent(Math.exp(logprob), 1)}, log-probability ${fixed(logprob, 3)}">${piece}</span>`;
