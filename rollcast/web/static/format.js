// Numbers as people read them. All accept null and undefined, and return NOTHING for them.

export const NOTHING = "–";
const NARROW = "\u202f"; // between a figure and its unit: thin, and no line breaks there

export const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export function fixed(value, digits = 2) {
  return known(value) ? Number(value).toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1") : NOTHING;
}

const WHOLE = new Intl.NumberFormat("en-US"); // made once: toLocaleString makes one each time

/** Whole things: 12,480. */
export function count(value) {
  return known(value) ? WHOLE.format(Math.round(value)) : NOTHING;
}

/** Many things, in three digits: 12.5k. */
export function compact(value) {
  if (!known(value)) return NOTHING;
  const size = Math.abs(value);
  if (size < 1e3) return size < 10 && !Number.isInteger(value) ? value.toFixed(1) : String(Math.round(value));
  for (const [limit, divisor, unit] of [[1e6, 1e3, "k"], [1e9, 1e6, "M"], [1e12, 1e9, "G"], [Infinity, 1e12, "T"]]) {
    if (size < limit) return threeDigits(value / divisor) + unit;
  }
  return NOTHING;
}

function threeDigits(value) {
  const size = Math.abs(value);
  return value.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0);
}

/** A figure of any size in three significant digits: 0.00312, 1.04, 3.1e-7. */
export function figure(value) {
  if (!known(value)) return NOTHING;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3) return value.toExponential(1).replace("e-0", "e-");
  if (size < 1) return String(Number(value.toPrecision(3)));
  return size < 1e3 ? String(Number(value.toPrecision(3))) : compact(value);
}

export function percent(ratio, digits) {
  if (!known(ratio)) return NOTHING;
  const places = digits ?? ((ratio !== 0 && Math.abs(ratio) < 0.1) || (ratio > 0.99 && ratio < 1) ? 1 : 0); // all is 100 %, nearly all is not
  return (100 * ratio).toFixed(places) + NARROW + "%";
}

export function bytes(value) {
  if (!known(value)) return NOTHING;
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return (unit ? threeDigits(value) : Math.round(value)) + NARROW + units[unit];
}

export const rate = (bytesPerS) => (known(bytesPerS) ? bytes(bytesPerS) + "/s" : NOTHING);

/** A duration: <1 ms, 142 ms, 5.2 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (!known(seconds)) return NOTHING;
  if (seconds === 0) return "0" + NARROW + "s";
  if (seconds < 0.0005) return "<1" + NARROW + "ms";
  if (seconds < 0.9995) return Math.round(seconds * 1000) + NARROW + "ms";
  if (seconds < 9.95) return seconds.toFixed(1) + NARROW + "s";
  const whole = Math.round(seconds);
  if (whole < 60) return whole + NARROW + "s";
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  const two = (one, unit, other, small) => one + NARROW + unit + (other ? "\u00a0" + other + NARROW + small : "");
  if (days) return two(days, "d", hours, "h");
  return hours ? two(hours, "h", minutes, "min") : two(minutes, "min", whole % 60, "s");
}

/** How long ago, without jitter below a second: now, 5 s, 3 min, 2 h, 4 d. */
export function age(seconds) {
  if (!known(seconds)) return NOTHING;
  if (seconds < 1) return "now";
  for (const [limit, divisor, unit] of [[60, 1, "s"], [3600, 60, "min"], [172800, 3600, "h"], [Infinity, 86400, "d"]]) {
    if (seconds < limit) return Math.floor(seconds / divisor) + NARROW + unit;
  }
  return NOTHING;
}

export function usd(value) {
  if (!known(value)) return NOTHING;
  const size = Math.abs(value);
  if (size !== 0 && size < 0.01) return "$" + Number(value.toPrecision(2));
  return "$" + value.toLocaleString("en-US", { minimumFractionDigits: size < 1000 ? 2 : 0, maximumFractionDigits: size < 1000 ? 2 : 0 });
}

/** Time of day, with the date if it is not today. */
export function clock(unixS, nowMs = Date.now()) {
  if (!known(unixS)) return NOTHING;
  const at = new Date(unixS * 1000);
  const time = at.toLocaleTimeString("en-GB");
  if (at.toDateString() === new Date(nowMs).toDateString()) return time;
  return at.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) + " " + time;
}

/** The day, or the time if it is today. */
export const day = (unixS, nowMs = Date.now()) => clock(unixS, nowMs).replace(/ [0-9:]+$/, "");

export const plural = (number, one, many = one + "s") => count(number) + " " + (number === 1 ? one : many);

const IDS_PER_PROCESS = 2 ** 32; // IDS_PER_INCARNATION of rollcast/wire/ids.py

/** A lease's id as commands write it: "17", or "2.17" of a coordinator that was restarted once. */
export function leaseName(id) {
  const process = Math.floor(id / IDS_PER_PROCESS), number = id % IDS_PER_PROCESS;
  return process > 1 ? process + "." + number : String(number);
}

/** "lease_expired" as a person would write it: "lease expired". */
export const words = (name) => String(name).replaceAll("_", " ");

export const shortId = (peerId) => (peerId && peerId.length > 14 ? "…" + peerId.slice(-8) : peerId || NOTHING);
