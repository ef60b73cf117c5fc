// What states and verdicts are called, and what they mean to whoever owns the machine.

const STATES = {
  generating: ["Generating", "good"], idle: ["Idle", ""], receiving: ["Receiving", "accent"], starting: ["Starting", "accent"],
  standby: ["On standby", ""], resting: ["Resting", "warn"], paused: ["Paused", "warn"], finishing: ["Finishing", "accent"],
  draining: ["Stopping", "accent"], drained: ["Drained", ""],
};

/** {title, tone} of a report; null: nothing is known yet. */
export function stateOf(report) {
  if (!report) return { title: "…", tone: "" };
  const [title, tone] = STATES[report.state] || [report.state, ""];
  return { title, tone };
}

/** With a capital at its beginning. */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const VERDICTS = {
  accepted: "Taken: it counts, and may be trained on.",
  interrupted: "Begun here and handed over unfinished; somebody else goes on with it.",
  stale: "Too old when it came: the learner had gone on by more steps than the run allows.",
  group_stale: "Its group became too old before it was complete.",
  late_duplicate: "Somebody else's attempt at the same rollout was stored first.",
  lease_expired: "It came after the time that the work was given for.",
  wrong_fence: "The work had been given to somebody else meanwhile.",
  unknown_lease: "The coordinator knows no such work: it was restarted, or the work was taken back.",
  rolled_back: "Made with a version that the learner went back behind.",
  returned: "Handed back before it was done.",
  revoked: "The coordinator took the work back.",
  malformed: "It was not of the form that was asked for: this may be a fault of this machine or of its software.",
  quarantined: "This machine is set aside because of what it sent before.",
  banned: "The run's operator has sent this machine away.",
};

export const meaningOf = (verdict) => VERDICTS[verdict] || "See the run's operator: the coordinator gave this reason.";
export const toneOf = (verdict) => (verdict === "accepted" ? "good" : verdict === "malformed" || verdict === "quarantined" || verdict === "banned" ? "bad" : "warn");

/** "2h", "15m", "90 s", "1d" in seconds; null where it is no such time. */
export function secondsOf(text) {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([smhd])\w*\s*$/.exec(text.toLowerCase());
  const seconds = match ? Number(match[1]) * { s: 1, m: 60, h: 3600, d: 86400 }[match[2]] : 0;
  return seconds > 0 ? seconds : null;
}
