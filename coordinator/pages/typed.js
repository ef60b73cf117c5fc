// An input of a filter.
import { html, useEffect, useRef, useState } from "/web/vendor/htm-preact.js";

const TYPING_MS = 250;

/** An input that reports its text once the user stops typing. */
export function Typed({ value, onTyped, ...rest }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  useEffect(() => setText(value), [value]);
  const onInput = (event) => {
    const typed = event.target.value;
    setText(typed);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onTyped(typed), TYPING_MS);
  };
  return html`<input ...${rest} value=${text} onInput=${onInput} />`;
}
