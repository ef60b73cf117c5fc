// A table of thousands of rows that draws only those in sight. A grid for assistive technology: one tab stop, arrows move,
// space selects, Enter opens. While the user points at a row or moves by keyboard, the order is held, so that no row slips away
// from under a click.
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { extended, fitting, kept, moved, ordered, toggled, windowOf } from "./table_rows.js";

const HELD_MS = 4000; // after the last move of the pointer or the keyboard
const NARROW_PIXELS = 620; // below: cards
const SELECT_PIXELS = 34;
let tables = 0;

/**
 * Args:
 *   label: name of the table, for assistive technology.
 *   columns: [{id, title, hint, width, grow, rank, sparse, end, down, value(row), cell(row)}]: widths in pixels; `rank` as in
 *     `fitting`; `sparse`: left out while no row has a value other than 0; `end`: aligned to the right; `down`: the first click sorts downwards; without `value` it cannot be sorted.
 *   rows, keyOf(row): a new array whenever something changed.
 *   sort {id, down}, onSort: the sort order; null: the order of the rows, and visible rows stay in place when others are added before them.
 *   selected (Set of keys), onSelect: left out, nothing can be selected.
 *   opened, onOpen(key): the row whose details are shown.
 *   card(row), cardHeight: the content of a row on narrow screens instead of cells, and about its height in pixels; cards get that of the tallest.
 *   empty: shown without rows.
 */
export function VirtualTable(props) {
  const { rows, keyOf, columns, sort, selected, empty, rowHeight = 36 } = props;
  const scroller = useRef(null);
  const box = useBox(scroller);
  const busyUntil = useRef(0);
  const column = sort ? columns.find((one) => one.id === sort.id) : null;
  const order = useOrder(rows, keyOf, column, sort?.down, busyUntil);
  const narrow = box.width > 0 && box.width < NARROW_PIXELS;
  const cardHeight = useCardHeight(scroller, narrow ? box.width : 0, props.cardHeight || 96);
  const tall = narrow ? cardHeight : rowHeight;
  const filled = columns.map((one) => !one.sparse || rows.some((row) => one.value(row)));
  const shown = useMemo(() => fitting(columns.filter((_, at) => filled[at]), box.width - (selected ? SELECT_PIXELS : 0)), [columns, filled.join(), box.width, !selected]);
  useAnchor(order.keys, scroller, tall, !column);
  const reach = useKeyboard(props, order, scroller, tall, busyUntil, narrow ? 0 : rowHeight);
  const { first, end } = windowOf(box.top, box.height, tall, order.keys.length);
  const busy = () => { busyUntil.current = performance.now() + HELD_MS; };
  const drawn = order.keys.slice(first, end);
  const template = (selected ? `${SELECT_PIXELS}px ` : "") + (narrow ? "minmax(0, 1fr)" : shown.map((one) => `${one.pixels}px`).join(" "));
  const activeId = drawn.includes(reach.active) ? `${reach.id}-${reach.active}` : undefined;
  return html`<div class=${"vt" + (narrow ? " vt-cards" : "")}>
    ${narrow && sort && html`<${SortMenu} ...${props} />`}
    <div class="vt-scroll" role="grid" tabindex="0" ref=${scroller} aria-label=${props.label} aria-rowcount=${order.keys.length + 1}
      aria-colcount=${narrow ? 1 + Boolean(selected) : columns.length + Boolean(selected)} aria-multiselectable=${selected ? "true" : undefined}
      aria-activedescendant=${activeId} onKeyDown=${reach.onKeyDown} style=${{ "--vt-columns": template }}>
      <${Head} ...${props} shown=${shown} narrow=${narrow} keys=${order.keys} />
      <div class="vt-body" role="rowgroup" onPointerMove=${busy} onPointerDown=${busy} style=${{ height: `${order.keys.length * tall}px` }}>
        ${drawn.map((key, at) => html`<${Row} key=${key} id=${`${reach.id}-${key}`} row=${order.byKey.get(key)} name=${key} at=${first + at} top=${(first + at) * tall}
          tall=${tall} shown=${shown} narrow=${narrow} card=${props.card} active=${key === reach.active} opened=${key === props.opened}
          selected=${selected && selected.has(key)} selectable=${Boolean(selected)} nameOf=${props.nameOf} onPoint=${reach.onPoint} />`)}
      </div>
      ${!order.keys.length && html`<div class="vt-empty">${empty}</div>`}
    </div>
  </div>`;
}

function Head({ columns, shown, narrow, keys, sort, onSort, selected, onSelect }) {
  const all = selected && keys.length > 0 && keys.every((key) => selected.has(key));
  const some = selected && !all && selected.size > 0;
  const box = html`<span role="columnheader" class="vt-pick" aria-colindex="1"><input type="checkbox" aria-label="Select all that are listed" checked=${all}
    indeterminate=${some} onChange=${() => onSelect(new Set(all ? [] : keys))} /></span>`;
  if (narrow) {
    return html`<div class="vt-head vt-unseen" role="rowgroup"><div role="row" aria-rowindex="1">${selected && html`<span role="columnheader">Selected</span>`}
      <span role="columnheader">Summary</span></div></div>`;
  }
  return html`<div class="vt-head" role="rowgroup"><div class="vt-row" role="row" aria-rowindex="1">
    ${selected && box}
    ${shown.map((one) => {
      const isSorted = sort?.id === one.id;
      const to = isSorted ? !sort.down : Boolean(one.down);
      return html`<span key=${one.id} role="columnheader" class=${one.end ? "vt-end" : ""} title=${one.hint}
        aria-colindex=${columns.indexOf(columns.find((column) => column.id === one.id)) + 1 + Boolean(selected)}
        aria-sort=${isSorted ? (sort.down ? "descending" : "ascending") : one.value && sort ? "none" : undefined}>
        ${one.value && sort ? html`<button type="button" onClick=${() => onSort({ id: one.id, down: to })}>${one.title}<i aria-hidden="true">${isSorted ? (sort.down ? "↓" : "↑") : ""}</i></button>` : one.title}</span>`;
    })}</div></div>`;
}

function Row({ id, row, name, at, top, tall, shown, narrow, card, active, opened, selected, selectable, nameOf, onPoint }) {
  const kind = "vt-row" + (active ? " vt-active" : "") + (opened ? " vt-opened" : "") + (selected ? " vt-selected" : "");
  return html`<div class=${kind} role="row" id=${id} aria-rowindex=${at + 2} aria-selected=${selectable ? String(Boolean(selected)) : undefined}
    style=${{ transform: `translateY(${top}px)`, height: `${tall}px` }} onClick=${(event) => onPoint(event, name, at)}>
    ${selectable && html`<span role="gridcell" class="vt-pick"><input type="checkbox" tabindex="-1" checked=${selected}
      aria-label=${`Select ${nameOf ? nameOf(row) : name}`} /></span>`}
    ${narrow ? html`<div role="gridcell" class="vt-card">${card(row)}</div>`
      : shown.map((one) => html`<span key=${one.id} role="gridcell" class=${one.end ? "vt-end" : ""}>${one.cell(row)}</span>`)}
  </div>`;
}

/** Controls of cards, which have no head: the sort order, and selecting all. */
function SortMenu({ columns, sort, onSort, selected, onSelect, rows, keyOf, label }) {
  const all = selected && rows.length > 0 && rows.every((row) => selected.has(keyOf(row)));
  return html`<div class="vt-sort">
    ${selected && html`<label><input type="checkbox" checked=${all} onChange=${() => onSelect(new Set(all ? [] : rows.map(keyOf)))} /> all</label>`}
    <label>sorted by <select aria-label=${`Sort ${label} by`} value=${sort.id} onChange=${(event) => {
      const to = columns.find((one) => one.id === event.target.value);
      onSort({ id: to.id, down: Boolean(to.down) });
    }}>${columns.filter((one) => one.value).map((one) => html`<option value=${one.id}>${one.title}</option>`)}</select></label>
    <button type="button" class="vt-turn" aria-label=${sort.down ? "Sort upwards" : "Sort downwards"} onClick=${() => onSort({ id: sort.id, down: !sort.down })}>${sort.down ? "↓" : "↑"}</button>
  </div>`;
}

// ---------------------------------------------------------------- internal state

/** Rows by key, and keys in order; the order is held while the user points or moves. */
function useOrder(rows, keyOf, column, down, busyUntil) {
  const last = useRef({ keys: [], id: null, down: null });
  return useMemo(() => {
    const byKey = new Map();
    for (const row of rows) byKey.set(keyOf(row), row);
    const { keys: before, id, down: wasDown } = last.current;
    if (!column?.value) {
      last.current = { keys: [...byKey.keys()], id: null, down };
      return { byKey, keys: last.current.keys };
    }
    const isHeld = id === column.id && wasDown === down && performance.now() < busyUntil.current;
    const keys = isHeld ? kept(byKey, before) : ordered(byKey, before, column.value, down);
    last.current = { keys, id: column.id, down };
    return { byKey, keys };
  }, [rows, column?.id, down]);
}

/** Keeps visible rows in place when others are added before them. */
function useAnchor(keys, scroller, tall, isOn) {
  const before = useRef(keys);
  useLayoutEffect(() => {
    const element = scroller.current, at = Math.floor(element.scrollTop / tall);
    const to = isOn && at > 0 && before.current !== keys ? keys.indexOf(before.current[at]) : -1;
    if (to > at) element.scrollTop += (to - at) * tall;
    before.current = keys;
  }, [keys, tall, isOn]);
}

/** Visible width and height, and the scroll position, in pixels. */
function useBox(scroller) {
  const [box, setBox] = useState({ width: 0, height: 0, top: 0 });
  useLayoutEffect(() => {
    const element = scroller.current;
    let waiting = 0;
    const look = () => {
      waiting = 0;
      setBox((was) => {
        const is = { width: element.clientWidth, height: element.clientHeight, top: element.scrollTop };
        return is.width === was.width && is.height === was.height && is.top === was.top ? was : is;
      });
    };
    const soon = () => { waiting = waiting || requestAnimationFrame(look); };
    const observer = new ResizeObserver(soon);
    observer.observe(element);
    element.addEventListener("scroll", soon, { passive: true });
    look();
    return () => { observer.disconnect(); element.removeEventListener("scroll", soon); cancelAnimationFrame(waiting); };
  }, []);
  return box;
}

/** Height of the tallest card seen at this width, so that none is cut off and little stays blank. Args: width: 0 if there are no cards; first: the height before any is drawn. */
function useCardHeight(scroller, width, first) {
  const [seen, setSeen] = useState({ width: 0, height: 0 });
  useLayoutEffect(() => {
    if (!width) return;
    const cards = [...scroller.current.querySelectorAll(".vt-body .vt-card")];
    const height = Math.max(0, ...cards.map((one) => one.scrollHeight + 1));
    if (height && (seen.width !== width || height > seen.height)) setSeen({ width, height });
  });
  return seen.width === width && seen.height ? seen.height : first;
}

/** The row with the keyboard's focus, and the effects of keys and clicks. */
function useKeyboard({ selected, onSelect, onOpen }, order, scroller, tall, busyUntil, headHeight) {
  const [active, setActive] = useState(null);
  const [id] = useState(() => `vt${(tables += 1)}`);
  const anchor = useRef(0);
  const goTo = (at) => {
    const element = scroller.current, inSight = element.clientHeight - headHeight;
    if (at * tall < element.scrollTop) element.scrollTop = at * tall;
    else if ((at + 1) * tall > element.scrollTop + inSight) element.scrollTop = (at + 1) * tall - inSight;
    setActive(order.keys[at]);
  };
  const onKeyDown = (event) => {
    if (event.target !== scroller.current || event.altKey) return;
    const at = order.keys.indexOf(active), page = Math.max(1, Math.floor(scroller.current.clientHeight / tall) - 2);
    const to = event.ctrlKey || event.metaKey ? null : moved(event.key, at, order.keys.length, page);
    if (to !== null) {
      if (event.shiftKey && selected) onSelect(extended(selected, order.keys, at < 0 ? to : at, to));
      else anchor.current = to;
      goTo(to);
    } else if (event.key === " " && selected && at >= 0) onSelect(toggled(selected, active));
    else if (event.key === "Enter" && at >= 0) onOpen?.(active);
    else if (event.key === "a" && (event.ctrlKey || event.metaKey) && selected) onSelect(new Set(order.keys));
    else if (event.key === "Escape" && selected?.size) onSelect(new Set());
    else return;
    busyUntil.current = performance.now() + HELD_MS;
    event.preventDefault();
  };
  const onPoint = (event, key, at) => {
    setActive(key);
    const picks = selected && (event.target.closest(".vt-pick") || event.ctrlKey || event.metaKey);
    if (selected && event.shiftKey) onSelect(extended(selected, order.keys, anchor.current, at));
    else if (picks) onSelect(toggled(selected, key));
    else if (!event.target.closest("a, button, input")) onOpen?.(key);
    if (!event.shiftKey) anchor.current = at;
  };
  return { active, id, onKeyDown, onPoint };
}

/** Makes an element reach from where it is to the bottom of the window; at least `least` pixels. */
export function useFill(ref, least = 320) {
  const fill = useCallback(() => {
    const element = ref.current;
    if (!element) return;
    const below = parseFloat(getComputedStyle(element.ownerDocument.documentElement).getPropertyValue("--page-foot")) || 16;
    const top = element.getBoundingClientRect().top + window.scrollY;
    element.style.height = `${Math.max(least, window.innerHeight - top - below)}px`;
  }, []);
  useLayoutEffect(fill);
  useEffect(() => {
    window.addEventListener("resize", fill);
    return () => window.removeEventListener("resize", fill);
  }, []);
}
