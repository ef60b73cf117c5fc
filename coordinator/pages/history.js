// Figures of the fleet over time: requested once, then extended from the stream.
import { useEffect, useState } from "/web/vendor/htm-preact.js";
import { get, token, withQuery } from "/web/api.js";
import { useMessages } from "/web/stream.js";

const GONE_S = 30; // seconds without a sample after which the whole history is requested again

export const SPANS = [["900", "15 min"], ["3600", "1 h"], ["21600", "6 h"], ["86400", "24 h"]];

/** The history with one more sample, without samples older than the span; null if there is a gap to fill. */
export function extended(history, sample, spanS) {
  const { times_unix_s: times, series } = history;
  const last = times.at(-1);
  if (last !== undefined && sample.time_unix_s <= last) return history;
  if (last !== undefined && sample.time_unix_s - last > GONE_S) return null;
  let from = 0;
  while (from < times.length && times[from] < sample.time_unix_s - spanS) from += 1;
  const grown = (values, value) => [...(values || []).slice(from), value];
  const next = {};
  for (const [name, one] of Object.entries(series)) {
    const [mean = null, worst = null, who = ""] = sample.values[name] || [];
    next[name] = { unit: one.unit, mean: grown(one.mean, mean), worst: grown(one.worst, worst), worst_who: grown(one.worst_who, who) };
  }
  return { times_unix_s: grown(times, sample.time_unix_s), series: next };
}

/** {history, error}: as /api/v1/history has it, kept up to date; history is null before the first answer. */
export function useHistory(spanS) {
  const [state, setState] = useState({ history: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    let here = true;
    get(withQuery("/api/v1/history", { span_s: spanS })).then(
      (history) => here && setState({ history, error: null }),
      (error) => here && setState((before) => ({ ...before, error })),
    );
    return () => { here = false; };
  }, [spanS, round]);
  useEffect(() => token.subscribe(() => setRound((number) => number + 1)), []);
  useMessages(["history"], (_topic, sample) => {
    setState((before) => {
      if (!before.history) return before;
      const history = extended(before.history, sample, Number(spanS));
      if (!history) setRound((number) => number + 1);
      return history ? { history, error: null } : before;
    });
  });
  return state;
}
