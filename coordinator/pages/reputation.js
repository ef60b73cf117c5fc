// The card of a peer or an invite: what audits found, what the run does about it, and how to undo it.
import { html } from "/web/vendor/htm-preact.js";
import { useGet } from "/web/api.js";
import { count, plural, words } from "/web/format.js";
import { Badge, CopyButton, Problem } from "/web/parts.js";

const TONES = { good: "good", probation: "", watched: "warn", quarantined: "bad", banned: "bad" };

const nats = (value) => `${Number(value.toPrecision(3))} nats`;

/** The facts of one card, and its state with the reason. */
export function ReputationCard({ card, title }) {
  const off = card.off ? html`<span class="bad">${plural(card.off, "token")}</span> in ${plural(card.left_out, "rollout")}; worst ${nats(card.worst_nats)}, token ${card.worst_at} of rollout ${card.worst_rollout}` : "none";
  const facts = [
    ["Audited", `${plural(card.tokens, "token")} in ${plural(card.rollouts, "rollout")}`],
    ["Beyond the bound", off],
    ["Bound", card.tokens ? `${nats(card.floor_nats)}, the most that an honest ${card.sampler || "engine"} deviates` : "no rollout audited yet"],
    ["Trained on", `${count(card.trained)} of these rollouts`],
    ["Coordinator", card.act],
    card.undo && ["To undo", html`<code>${card.undo.split(";")[0]}</code> <${CopyButton} text=${card.undo.split(";")[0]} aria-label="Copy the command">${null}<//>${card.undo.split(";").slice(1).join(";")}`],
  ].filter(Boolean);
  return html`<section class="reputation" aria-label=${title}><h3>${title} <${Badge} dot tone=${TONES[card.state]}>${words(card.state)}<//></h3>
    ${card.because && html`<p class="muted">${card.because}</p>`}
    <dl class="facts">${facts.map(([term, text]) => html`<div key=${term}><dt>${term}</dt><dd>${text}</dd></div>`)}</dl></section>`;
}

/** The cards of one peer and its invite. */
export function PeerReputation({ peerId }) {
  const { data, error, reload } = useGet(`/api/v1/reputations?peer=${encodeURIComponent(peerId)}`);
  if (error) return html`<${Problem} error=${error} retry=${reload} />`;
  return html`${(data?.peers || []).map((card) => html`<${ReputationCard} key=${card.id} card=${card} title="Reputation" />`)}
    ${(data?.invites || []).map((card) => html`<${ReputationCard} key=${card.id} card=${card} title=${`Invite ${card.id}`} />`)}`;
}
