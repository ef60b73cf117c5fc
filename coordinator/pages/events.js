// Events: the run's event log with filters, links and causes; and the audit log.
import { html, useCallback, useEffect, useMemo, useRef, useState } from "/web/vendor/htm-preact.js";
import { get, useGet, useRetry, withQuery } from "/web/api.js";
import { clock, count, plural, words } from "/web/format.js";
import { Badge, Button, CopyButton, Empty, PageHead, Problem, Select, Tabs } from "/web/parts.js";
import { go, setParams } from "/web/router.js";
import { useMessages } from "/web/stream.js";
import { useFill, VirtualTable } from "/web/table.js";
import { Aside } from "./aside.js";
import { causeWords, detailWords, fits, merged, storyOf, subjectHref, subjectWords, toneOf } from "./event_rows.js";
import { Story } from "./story.js";
import { Typed } from "./typed.js";

const PAGE = 200;
const KEPT_MAX = 5_000; // events in the list; filters find older ones
const keyOf = (event) => String(event.id);

const COLUMNS = [
  { id: "time", title: "Time", width: 112, cell: (one) => html`<time datetime=${new Date(one.at_unix_s * 1000).toISOString()}>${clock(one.at_unix_s)}</time>` },
  { id: "kind", title: "Kind", width: 170, cell: (one) => html`<${Badge} tone=${toneOf(one.kind)}>${words(one.kind)}<//>` },
  { id: "subject", title: "About", width: 176, grow: 0.4, cell: (one) => (one.name ? html`<a href=${subjectHref(one)} tabindex="-1">${one.name}</a>` : html`<span title=${one.subject}>${subjectWords(one)}</span>`) },
  { id: "detail", title: "What happened", width: 240, grow: 4, cell: (one) => html`<span class="two-lines" title=${detailWords(one)}>${detailWords(one)}</span>` },
  { id: "cause", title: "Cause", width: 130, grow: 0.6, rank: 1, cell: (one) => html`<span class="muted two-lines" title=${one.cause}>${causeWords(one)}</span>` },
];

function card(one) {
  return html`<div class="worker-card"><div class="line"><${Badge} tone=${toneOf(one.kind)}>${words(one.kind)}<//><span class="muted">${clock(one.at_unix_s)}</span></div>
    <div class="line"><b class="cut">${subjectWords(one)}</b></div><div class="line muted"><span class="two-lines">${detailWords(one)}</span></div></div>`;
}

export function Page({ params, rest }) {
  const tab = params.tab === "audit" ? "audit" : "events";
  const frame = useRef(null);
  useFill(frame);
  return html`<${PageHead} title="Events" note="events of the run, and acts of its operators" />
    <div class="tabbed" ref=${frame}><${Tabs} label="Events" tabs=${[["events", "Events"], ["audit", "Audit log"]]} selected=${tab} onSelect=${(key) => setParams({ tab: key === "audit" ? key : "" })}>
      ${tab === "audit" ? html`<${Audit} />` : html`<${Events} params=${params} openedId=${rest[0] || null} />`}<//></div>`;
}

function Events({ params, openedId }) {
  const wanted = { kind: params.kind || "", subject: params.subject || "", q: params.q || "" };
  const { events, kinds, more, error, busy, older, again } = useEvents(wanted);
  const open = (id) => go(id ? `events/${id}` : "events", params);
  return html`<div class="fleet" onKeyDown=${(event) => { if (event.key === "Escape" && openedId && !event.defaultPrevented) open(null); }}>
    <div class="fleet-main card flush">
      <${Filters} wanted=${wanted} kinds=${kinds} />
      ${error && html`<${Problem} error=${error} retry=${again} />`}
      <${VirtualTable} label="Events" columns=${COLUMNS} rows=${events} keyOf=${keyOf} sort=${null} card=${card} cardHeight=${104}
        opened=${openedId} onOpen=${open} empty=${busy ? html`<p class="muted">Reading the ledger…</p>` : !error && html`<${Empty} title="No event matches"><${Button} onClick=${() => setParams({ kind: "", subject: "", q: "" })}>Show all<//><//>`} />
      <div class="table-foot"><span class="muted">${(events.length > 0 || !error) && `${plural(events.length, "event")}${more ? ", newest first" : " in all"}`}</span>${more && html`<${Button} busy=${busy} onClick=${older}>Load older<//>`}</div>
    </div>
    ${openedId && html`<${Aside} title=${`Event ${openedId}`} onClose=${() => open(null)}><${Detail} key=${openedId} id=${openedId} known=${events.find((one) => keyOf(one) === openedId)} /><//>`}
  </div>`;
}

/** Events that match the filter: pages of the ledger, and live ones. */
function useEvents(wanted) {
  const key = JSON.stringify(wanted);
  const [state, setState] = useState({ events: [], kinds: [], before: null, error: null, busy: true });
  const turn = useRef(0), newest = useRef(key);
  newest.current = key;
  const load = useCallback(async (before) => {
    const mine = (turn.current += 1);
    setState((is) => ({ ...is, busy: true }));
    try {
      const page = await get(withQuery("/api/v1/events", { ...JSON.parse(key), before, limit: PAGE }));
      if (mine !== turn.current) return;
      setState((is) => ({ events: before ? merged(is.events, page.events, KEPT_MAX) : page.events, kinds: page.kinds, before: page.next_before, error: null, busy: false }));
    } catch (error) {
      if (mine === turn.current) setState((is) => ({ ...is, error, busy: false }));
    }
  }, [key]);
  useEffect(() => { load(null); return () => { turn.current += 1; }; }, [load]);
  const again = useCallback(() => load(null), [load]);
  useRetry(state.error, again);
  useMessages(["events"], (_topic, data) => {
    setState((is) => {
      const fitting = data.events.filter((one) => fits(one, JSON.parse(newest.current)));
      return fitting.length ? { ...is, events: merged(is.events, fitting, KEPT_MAX) } : is;
    });
  });
  return { ...state, more: state.before !== null && state.events.length < KEPT_MAX, older: () => load(state.before), again };
}

function Filters({ wanted, kinds }) {
  const options = [["", "All kinds"], ...kinds.map((kind) => [kind, words(kind)])];
  return html`<div class="fleet-bar" role="search">
    <${Typed} data-search class="input fleet-search" type="search" aria-label="Search events" placeholder="Search events…" value=${wanted.q} onTyped=${(q) => setParams({ q })} />
    <${Select} hideLabel label="Kind" value=${wanted.kind} onChange=${(kind) => setParams({ kind })} options=${options} />
    <${Typed} class="input event-subject" type="search" aria-label="About: a worker's name, or rollout 9, version 8" placeholder="About: worker, version 8…" value=${wanted.subject} onTyped=${(subject) => setParams({ subject: subject.trim() })} />
  </div>`;
}

function Detail({ id, known: given }) {
  const { data, error } = useGet(given ? "" : `/api/v1/events/${encodeURIComponent(id)}`);
  const event = given || data;
  if (error) return html`<${Problem} error=${error} />`;
  if (!event) return html`<p class="muted">Reading the ledger…</p>`;
  const subject = storyOf(event), address = `${location.origin}${location.pathname}#/events/${id}`;
  return html`<div class="detail">
    <p><${Badge} tone=${toneOf(event.kind)}>${words(event.kind)}<//></p>
    <p class="event-detail">${detailWords(event)}</p>
    <dl class="facts"><div><dt>Time</dt><dd>${new Date(event.at_unix_s * 1000).toLocaleString("en-GB")}</dd></div>
      <div><dt>About</dt><dd>${event.name ? html`<a href=${subjectHref(event)}>${event.name}</a>` : event.subject}</dd></div>
      ${event.cause && html`<div><dt>Cause</dt><dd>${causeWords(event)}</dd></div>`}</dl>
    <p><${CopyButton} text=${address}>Copy the link<//></p>
    <${Story} of="event" id=${id} title="What led to it" />
    ${subject && html`<${Story} ...${subject} title=${`Story of ${event.name || event.subject}`} newestFirst />`}
  </div>`;
}

function Audit() {
  const [rows, setRows] = useState([]);
  const { data, error, reload } = useGet("/api/v1/audit?limit=200");
  useEffect(() => { if (data) setRows(data.rows); }, [data]);
  const [sort, setSort] = useState({ id: "time", down: true });
  const older = async () => {
    const page = await get(withQuery("/api/v1/audit", { before: rows.at(-1).id, limit: 200 }));
    setRows(merged(rows, page.rows, KEPT_MAX));
  };
  const columns = useMemo(() => [
    { id: "time", title: "Time", width: 112, down: true, value: (one) => one.id, cell: (one) => clock(one.at_unix_s) },
    { id: "who", title: "Who", width: 130, value: (one) => one.who, cell: (one) => html`<b>${one.who}</b> <span class="muted">${one.access}</span>` },
    { id: "act", title: "Act", width: 140, value: (one) => one.act, cell: (one) => words(one.act) },
    { id: "subject", title: "On", width: 150, grow: 1, value: (one) => one.subject, cell: (one) => html`<span title=${one.subject}>${one.subject}</span>` },
    { id: "detail", title: "Detail", width: 160, grow: 3, rank: 1, value: (one) => one.detail, cell: (one) => html`<span class="muted two-lines" title=${one.detail}>${one.detail}</span>` },
    { id: "outcome", title: "Outcome", width: 220, grow: 2, value: (one) => one.outcome, cell: (one) => html`<span class=${one.outcome.startsWith("done") || /^\d+ done/.test(one.outcome) ? "two-lines" : "bad two-lines"} title=${one.outcome}>${one.outcome}</span>` },
  ], []);
  const auditCard = (one) => html`<div class="worker-card"><div class="line"><b>${words(one.act)}</b><span class="muted">${clock(one.at_unix_s)}</span></div><div class="line"><span class="cut">${one.subject}</span><span>${one.who}</span></div><div class="line muted"><span class="two-lines">${one.outcome}</span></div></div>`;
  return html`<div class="fleet"><div class="fleet-main card flush">
    ${error && html`<${Problem} error=${error} retry=${reload} />`}
    <${VirtualTable} label="Audit log" columns=${columns} rows=${rows} keyOf=${keyOf} sort=${sort} onSort=${setSort} card=${auditCard} cardHeight=${88}
      empty=${html`<${Empty} title=${data ? "No acts on this run yet" : "Reading the audit log…"}>Every act and every refused act is listed here with its user and its target.<//>`} />
    <div class="table-foot"><span class="muted">${count(rows.length)} ${rows.length === 1 ? "act" : "acts"}</span>${data && rows.length >= 200 && html`<${Button} onClick=${older}>Load older<//>`}<${Button} onClick=${reload}>Refresh<//></div>
  </div></div>`;
}
