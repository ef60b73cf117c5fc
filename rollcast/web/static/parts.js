// Components of pages. All work by keyboard and with screen readers.
import { createContext, html, useContext, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { createStore, useStore } from "./store.js";
import { Icon } from "./icons.js";

export { Icon };

let made = 0;
/** An id that no other element has, the same each time the component is drawn. */
export function useId(prefix = "id") {
  const id = useRef("");
  if (!id.current) id.current = prefix + "-" + (made += 1);
  return id.current;
}

const classes = (...names) => names.filter(Boolean).join(" ");

// ---------------------------------------------------------------- surfaces

/** A titled surface. note: text next to the title; actions: buttons at its right; flush: content to its edges. */
export function Card({ title, note, actions, children, className, flush, ...rest }) {
  const id = useId("card");
  const head = title || note || actions;
  return html`<section class=${classes("card", flush && "flush", className)} aria-labelledby=${title ? id : undefined} ...${rest}>
    ${head && html`<div class="card-head">
      ${title && html`<h2 id=${id}>${title}</h2>`}
      ${note && html`<span class="note">${note}</span>`}
      ${actions && html`<div class="actions">${actions}</div>`}
    </div>`}
    ${children}
  </section>`;
}

/** One key figure. tone: good, warn or bad if it needs attention; spark: values for a small line below it. */
export function Tile({ label, value, unit, note, tone, title, href, spark }) {
  const inner = html`<span class="tile-label">${label}</span>
    <span class=${classes("tile-value", tone)}>${value}${unit && html`<span class="unit">${"\u202f"}${unit}</span>`}</span>
    <span class="tile-note">${note || "\u00a0"}</span>
    ${spark && html`<${Spark} values=${spark} />`}`;
  return href
    ? html`<a class="tile" href=${href} title=${title}>${inner}</a>`
    : html`<div class="tile" title=${title}>${inner}</div>`;
}

/** A line without axes, for a tile. values: numbers or null, evenly spaced. */
export function Spark({ values, width = 120, height = 28 }) {
  const given = values.filter((value) => value !== null && value !== undefined);
  if (given.length < 2) return html`<svg class="spark" aria-hidden="true" />`;
  const [least, most] = [Math.min(...given), Math.max(...given)];
  const x = (index) => ((index / (values.length - 1)) * width).toFixed(1);
  const y = (value) => (height - 2 - ((value - least) / (most - least || 1)) * (height - 4)).toFixed(1);
  let path = "", pen = "M";
  values.forEach((value, index) => {
    if (value === null || value === undefined) { pen = "M"; return; }
    path += pen + x(index) + " " + y(value);
    pen = "L";
  });
  return html`<svg class="spark" viewBox="0 0 ${width} ${height}" preserveAspectRatio="none" aria-hidden="true"><path d=${path} /></svg>`;
}

/** A word in a pill. tone: good, warn, bad, accent or nothing; dot: only a dot before plain text. */
export function Badge({ tone, dot, children, title }) {
  return html`<span class=${classes(dot ? "state" : "badge", tone)} title=${title}>${children}</span>`;
}

/** The placeholder of an empty page: the reason, and what to do. */
export function Empty({ title, children, icon }) {
  return html`<div class="empty">${icon && html`<${Icon} name=${icon} size=${22} />`}<p class="empty-title">${title}</p>${children && html`<div class="empty-text">${children}</div>`}</div>`;
}

/** An error of api.js on screen: what happened, why, the fix, its code. */
export function Problem({ error, retry }) {
  if (!error) return null;
  return html`<div class="problem" role="alert">
    <${Icon} name="warning" />
    <div><p class="problem-what">${error.what || error.message}${error.cause ? ": " + error.cause : ""}</p>
      ${error.fix && html`<p class="muted">${error.fix}</p>`}
      ${error.code && html`<p class="muted small">Code ${error.code}</p>`}</div>
    ${retry && html`<${Button} onClick=${retry}>Try again<//>`}
  </div>`;
}

// ---------------------------------------------------------------- controls

/** kind: "" (quiet), primary or danger. Takes all attributes of a button. */
export function Button({ kind, icon, children, busy, disabled, className, ...rest }) {
  const label = html`${icon && html`<${Icon} name=${icon} />`}${children && html`<span>${children}</span>`}`;
  return html`<button type="button" ...${rest} class=${classes("button", kind, !children && "only-icon", className)} disabled=${disabled || busy} aria-busy=${busy ? "true" : undefined}>${label}</button>`;
}

/** A button that copies text to the clipboard and confirms it. */
export function CopyButton({ text, children = "Copy", ...rest }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => setDone(false), 2000);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
    } catch {
      toast("The browser did not allow copying", { tone: "bad", fix: "Select the text and copy it by hand." });
    }
  };
  return html`<${Button} icon=${done ? "check" : "copy"} onClick=${copy} aria-live="polite" ...${rest}>${done ? "Copied" : children}<//>`;
}

/**
 * A labelled input. hint: below it; error: instead of the hint, in red, and read aloud.
 * children: a control of your own, a function of {id, describedBy}; otherwise the other attributes make an <input>.
 */
export function Field({ label, hint, error, children, suffix, onInput, ...rest }) {
  const id = useId("field");
  const said = error || hint;
  const describedBy = said ? id + "-said" : undefined;
  const control = typeof children === "function"
    ? children({ id, describedBy })
    : html`<input id=${id} class="input" aria-describedby=${describedBy} aria-invalid=${error ? "true" : undefined} onInput=${onInput && ((event) => onInput(event.target.value))} ...${rest} />`;
  return html`<div class=${classes("field", error && "wrong")}>
    <label for=${id}>${label}</label>
    <div class="field-control">${control}${suffix && html`<span class="suffix">${suffix}</span>`}</div>
    ${said && html`<p class="field-said" id=${describedBy} role=${error ? "alert" : undefined}>${said}</p>`}
  </div>`;
}

/** options: [value, label] pairs. */
export function Select({ label, value, options, onChange, hideLabel, ...rest }) {
  const id = useId("select");
  return html`<div class=${classes("field", hideLabel && "bare")}>
    <label for=${id} class=${hideLabel ? "hidden" : undefined}>${label}</label>
    <span class="select"><select id=${id} class="input" value=${value} onChange=${(event) => onChange(event.target.value)} ...${rest}>
      ${options.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`)}
    </select><${Icon} name="down" size=${12} /></span>
  </div>`;
}

/** A few choices, one of which is active. options: [value, label] pairs; label is read aloud. */
export function Segments({ label, value, options, onChange }) {
  return html`<div class="segments" role="group" aria-label=${label}>
    ${options.map(([key, text]) => html`<button key=${key} type="button" aria-pressed=${String(key === value)} onClick=${() => onChange(key)}>${text}</button>`)}
  </div>`;
}

/** tabs: [key, label, count?]. Arrow keys move; children are the panel of the selected one. */
export function Tabs({ tabs, selected, onSelect, label, children }) {
  const id = useId("tabs");
  const move = (event) => {
    const at = tabs.findIndex(([key]) => key === selected);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const [key] = tabs[(to + tabs.length) % tabs.length];
    onSelect(key);
    event.currentTarget.querySelector(`[data-key="${key}"]`)?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>
    ${tabs.map(([key, text, number]) => html`<button key=${key} data-key=${key} type="button" role="tab" id="${id}-${key}" aria-selected=${String(key === selected)} aria-controls="${id}-panel" tabindex=${key === selected ? 0 : -1} onClick=${() => onSelect(key)}>${text}${number !== undefined && html`<span class="tab-count">${number}</span>`}</button>`)}
  </div>
  <div role="tabpanel" id="${id}-panel" aria-labelledby="${id}-${selected}">${children}</div>`;
}

// ---------------------------------------------------------------- dialogs and menus

/** A modal dialog; the browser keeps the focus in it and closes it by Escape. footer: its buttons. */
export function Dialog({ open, title, onClose, children, footer, wide }) {
  const element = useRef(null);
  const id = useId("dialog");
  useLayoutEffect(() => { // before it is painted, so that Escape closes whatever is seen
    const dialog = element.current;
    if (open && dialog && !dialog.open) dialog.showModal();
    if (!open && dialog?.open) dialog.close();
  }, [open]);
  if (!open) return null;
  const outside = (event) => { if (event.target === element.current) onClose(); };
  return html`<dialog ref=${element} class=${classes("dialog", wide && "wide")} aria-labelledby=${id} onCancel=${(event) => { event.preventDefault(); onClose(); }} onMouseDown=${outside}>
    <div class="dialog-inner">
      <header><h2 id=${id}>${title}</h2><${Button} icon="close" aria-label="Close" onClick=${onClose} /></header>
      <div class="dialog-body">${children}</div>
      ${footer && html`<footer>${footer}</footer>`}
    </div>
  </dialog>`;
}

/** A button with a list of acts. items: {label, icon, onClick, danger, disabled, note} or null for a line between. */
export function Menu({ label, icon = "more", items, kind, hideLabel, title, align = "end" }) {
  const [open, setOpen] = useState(false);
  const element = useRef(null);
  const id = useId("menu");
  const entries = () => [...element.current.querySelectorAll('[role="menuitem"]:not(:disabled)')];
  useEffect(() => {
    if (!open) return undefined;
    entries()[0]?.focus();
    const outside = (event) => { if (!element.current?.contains(event.target)) setOpen(false); };
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, [open]);
  const close = () => {
    setOpen(false);
    element.current.querySelector("button").focus();
  };
  const onKeyDown = (event) => {
    if (!open) return;
    const all = entries();
    const at = all.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 + (at < 0), Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "Escape") close();
    else if (event.key === "Tab") return setOpen(false);
    else if (to === undefined) return;
    else all[(to + all.length) % all.length]?.focus();
    event.preventDefault();
    event.stopPropagation();
  };
  return html`<div class="menu" ref=${element} onKeyDown=${onKeyDown}>
    <${Button} kind=${kind} icon=${icon} title=${title} aria-haspopup="menu" aria-expanded=${String(open)} aria-controls=${open ? id : undefined} aria-label=${hideLabel ? label : undefined} onClick=${() => setOpen(!open)}>${hideLabel ? null : label}<//>
    ${open && html`<div class="menu-list ${align}" role="menu" id=${id} aria-label=${label}>
      ${items.map((item, index) => item
        ? html`<button key=${index} type="button" role="menuitem" tabindex="-1" class=${classes(item.danger && "danger")} disabled=${item.disabled} onClick=${() => { close(); item.onClick(); }}>
            ${item.icon && html`<${Icon} name=${item.icon} />`}<span>${item.label}</span>${item.note && html`<span class="muted small">${item.note}</span>`}</button>`
        : html`<div key=${index} class="menu-line" role="separator"></div>`)}
    </div>`}
  </div>`;
}

const toasts = createStore([]);
/** Shows a message for a while. tone: good, warn or bad; fix: what to do. Messages of tone bad stay until closed. */
export function toast(text, { tone = "", fix = "" } = {}) {
  const one = { key: (made += 1), text, tone, fix };
  toasts.set([...toasts.get().slice(-3), one]);
  if (tone !== "bad") setTimeout(() => dismiss(one.key), 5000);
}

/** The error of an act, as a toast. */
export const toastError = (error) => toast(error.what || error.message, { tone: "bad", fix: [error.cause, error.fix, error.code && "Code " + error.code].filter(Boolean).join(". ") });

const dismiss = (key) => toasts.set(toasts.get().filter((one) => one.key !== key));

/** The place of toasts; once in a page. */
export function Toasts() {
  const all = useStore(toasts);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${all.map((one) => html`<div key=${one.key} class=${classes("toast", one.tone)}>
      ${one.tone && html`<${Icon} name=${one.tone === "good" ? "check" : "warning"} />`}
      <div><p>${one.text}</p>${one.fix && html`<p class="muted">${one.fix}</p>`}</div>
      <${Button} icon="close" aria-label="Dismiss" onClick=${() => dismiss(one.key)} />
    </div>`)}
  </div>`;
}

// ---------------------------------------------------------------- small drawings

/** A share of a whole, 0 to 1, as a bar. label is read aloud. */
export function Meter({ value, label, tone }) {
  const width = Math.max(0, Math.min(1, value || 0)) * 100;
  return html`<div class=${classes("meter", tone)} role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(width)}><div style=${{ width: width + "%" }}></div></div>`;
}

/** Shares of a whole side by side, with their names below. parts: {label, value, colour (a token), text}. */
export function Shares({ parts, label }) {
  const shown = parts.filter((one) => one.value > 0);
  const summary = shown.map((one) => one.label + " " + one.text).join(", ");
  return html`<div class="shares">
    <div class="shares-bar" role="img" aria-label="${label}: ${summary}">${shown.map((one) => html`<div key=${one.label} title="${one.label} ${one.text}" style=${{ flexGrow: one.value, background: `var(--${one.colour})` }}></div>`)}</div>
    <ul class="shares-list">${parts.map((one) => html`<li key=${one.label}><span class="swatch" style=${{ background: `var(--${one.colour})` }}></span>${one.label}<b>${one.text}</b></li>`)}</ul>
  </div>`;
}

/** {wanted}: whether the next page's heading gets the focus, as after a click on a link to it. */
export const Arrival = createContext({ wanted: false });

/** A page's own heading; children are controls at its right. */
export function PageHead({ title, note, children }) {
  const arrival = useContext(Arrival);
  const heading = useRef(null);
  useEffect(() => {
    if (arrival.wanted) heading.current.focus({ preventScroll: true });
    arrival.wanted = false;
  }, []);
  return html`<div class="page-head"><h1 ref=${heading} tabindex="-1">${title}</h1>${note && html`<span class="note">${note}</span>`}<div class="actions">${children}</div></div>`;
}
