// The newest lines of the peer's log.
import { html, useEffect, useMemo, useRef, useState } from "/web/vendor/htm-preact.js";
import { Card, Empty, Field, PageHead, Segments } from "/web/parts.js";
import { useTopic } from "/web/stream.js";

const APART = new Set(["timestamp", "level", "event", "role", "peer_id"]);
const AT_END_PIXELS = 40;

const restOf = (line) => Object.entries(line).filter(([key]) => !APART.has(key)).map(([key, value]) => `${key}=${value}`).join("  ");
const timeOf = (line) => (line.timestamp ? new Date(line.timestamp).toLocaleTimeString([], { hour12: false }) : "");

export function Log() {
  const log = useTopic("log");
  const [level, setLevel] = useState("all"), [query, setQuery] = useState("");
  const box = useRef(null), follows = useRef(true);
  const lines = useMemo(() => {
    const wanted = query.toLowerCase();
    return (log?.lines || []).filter((line) => (level === "all" || line.level === "warning" || line.level === "error") && (!wanted || JSON.stringify(line).toLowerCase().includes(wanted)));
  }, [log, level, query]);
  useEffect(() => { if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight; }, [lines]);
  const onScroll = ({ target }) => { follows.current = target.scrollHeight - target.scrollTop - target.clientHeight < AT_END_PIXELS; };
  return html`<div class="stack">
    <${PageHead} title="Log" note="The newest 200 lines; rollcast peer logs shows the whole log.">
      <${Segments} label="Lines shown" value=${level} options=${[["all", "All"], ["trouble", "Warnings and errors"]]} onChange=${setLevel} />
    <//>
    <${Field} label="Find" value=${query} onInput=${setQuery} type="search" placeholder="text in a line" />
    <${Card} flush>${lines.length ? html`<div class="log" ref=${box} onScroll=${onScroll} tabindex="0" role="log" aria-live="off" aria-label="Log">
      ${lines.map((line, at) => html`<p key=${line.timestamp + at} class=${line.level}><span class="muted">${timeOf(line)}</span> <b>${line.event}</b> <span class="log-rest">${restOf(line)}</span></p>`)}</div>`
      : html`<${Empty} title=${log ? "No lines match" : "Reading the log…"} />`}<//>
  </div>`;
}
