// The Events page without a screen: tones, links of subjects, and the filter of live events.
import { duration, shortId } from "/web/format.js";
import { href } from "/web/router.js";

const TONES = {
  activated: "good", peer_joined: "good", epoch_opened: "accent", version_announced: "accent", pinned: "accent", priced: "accent", staleness_limit: "accent",
  standby: "warn", peer_left: "warn", drained: "warn", activation_failed: "bad", penalised: "bad", accusation: "bad", quarantined: "bad", banned: "bad", unscorable: "bad", scoring_failed: "warn", scoring_paused: "bad", scoring_resumed: "good", learner_waited: "warn",
  peer_dialable: "good", peer_undialable: "warn",
};

export const toneOf = (kind) => TONES[kind] || "";

/** {of, id} to explain a subject; null if the ledger has no history of it. */
export function storyOf({ subject, name }) {
  const found = /^(rollout|lease|group|version|step) (\S+)$/.exec(subject);
  if (found) return { of: found[1], id: found[2] };
  return name ? { of: "peer", id: subject } : null;
}

/** The name of an event's subject on screen. */
export const subjectWords = ({ subject, name }) => name || (subject.length > 24 ? `…${subject.slice(-10)}` : subject);

/** The cause with the peer's name, or with the ends of peers' ids, which suffice to tell them apart. */
export const causeWords = ({ cause, cause_name }) => (cause_name || cause).replace(/12D3KooW\w+/g, shortId);

/** The page that shows the subject, or "". */
export const subjectHref = ({ subject, name }) => (name ? href(`workers/${subject}`) : "");

/** An event's detail as a sentence: causes of a learner's wait are JSON, [[stage, peer id or "", seconds], ...]. */
export function detailWords({ kind, detail }) {
  if (kind === "peer_joined") return detail.replace(/^.* as /, "joined as ");
  if (kind !== "learner_waited") return detail;
  try {
    const causes = JSON.parse(detail), seconds = causes.reduce((sum, one) => sum + one[2], 0);
    const parts = causes.map(([stage, who, s]) => `${stage}${who ? ` by ${shortId(who)}` : ""} ${duration(s)}`);
    return `the learner waited ${duration(seconds)}: ${parts.join(", ")}`;
  } catch {
    return detail;
  }
}

/** Whether a live event matches the filter, by the server's rules: without one, the wait of each step is left out. */
export function fits(event, { kind = "", subject = "", q = "" }) {
  if (!kind && !subject && !q) return event.kind !== "learner_waited";
  if (kind && !kind.split(",").includes(event.kind)) return false;
  if (subject && event.subject !== subject && event.name !== subject) return false;
  const text = [event.subject, event.detail, event.cause].join("\n").toLowerCase();
  return !q || text.includes(q.toLowerCase());
}

/** Merged events: newest first, each once, at most `most`. */
export function merged(events, more, most) {
  const byId = new Map([...events, ...more].map((one) => [one.id, one]));
  return [...byId.values()].sort((one, other) => other.id - one.id).slice(0, most);
}
