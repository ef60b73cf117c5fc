// Names of states and verdicts, and what they mean to the machine's owner.

const STATES = {
  generating: ["Generating", "good"], idle: ["Ready", "good"], receiving: ["Receiving", "accent"], starting: ["Starting", "accent"],
  standby: ["On standby", ""], resting: ["Resting", "warn"], paused: ["Paused", "warn"], finishing: ["Finishing", "accent"],
  draining: ["Stopping", "accent"], drained: ["Drained", ""],
};

/** {title, tone} of a report, which is null before the first one. */
export function stateOf(report) {
  if (!report) return { title: "…", tone: "" };
  const [title, tone] = STATES[report.state] || [report.state, ""];
  return { title, tone };
}

/** The text with a capital letter at its beginning. */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const VERDICTS = {
  accepted: "The rollout was accepted and may be trained on.",
  interrupted: "It was begun here and returned unfinished; another machine continues it.",
  stale: "It was too old when it arrived: the learner had moved on by more steps than the run allows.",
  group_stale: "Its group became too old before it was complete.",
  late_duplicate: "Another machine's attempt at the same rollout was stored first.",
  lease_expired: "It arrived after the deadline of the work.",
  wrong_fence: "The work had been given to another machine meanwhile.",
  unknown_lease: "The coordinator does not know this work: it was restarted, or the work was revoked.",
  rolled_back: "It was made with a version that the learner has discarded.",
  returned: "The work was returned before it was finished.",
  revoked: "The coordinator revoked the work.",
  older_version: "It was generated with an older version than this machine had used before.",
  audit_failed: "The run found that this machine's tokens do not follow from their seeds; see Now.",
  malformed: "It did not have the requested form. This machine or its software may be faulty.",
  quarantined: "This machine is quarantined because of what it sent before.",
  banned: "The run's operator has banned this machine.",
};

export const meaningOf = (verdict) => VERDICTS[verdict] || "The coordinator gave this reason. Ask the run's operator what it means.";
export const toneOf = (verdict) => (verdict === "accepted" ? "good" : verdict === "malformed" || verdict === "quarantined" || verdict === "banned" ? "bad" : "warn");

/** "2h", "15m", "90 s" or "1d" in seconds; null if the text is not a duration. */
export function secondsOf(text) {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([smhd])\w*\s*$/.exec(text.toLowerCase());
  const seconds = match ? Number(match[1]) * { s: 1, m: 60, h: 3600, d: 86400 }[match[2]] : 0;
  return seconds > 0 ? seconds : null;
}
