// Details next to a table, or in a dialog on narrow screens. wide: for text that is read, not looked up.
import { html, useEffect, useState } from "/web/vendor/htm-preact.js";
import { Button, Dialog } from "/web/parts.js";

const NARROW = matchMedia("(max-width: 900px)");

export function Aside({ title, onClose, wide, children }) {
  const [isNarrow, setIsNarrow] = useState(NARROW.matches);
  useEffect(() => {
    const follow = () => setIsNarrow(NARROW.matches);
    NARROW.addEventListener("change", follow);
    return () => NARROW.removeEventListener("change", follow);
  }, []);
  if (isNarrow) return html`<${Dialog} open title=${title} onClose=${onClose} wide>${children}<//>`;
  return html`<aside class=${wide ? "fleet-side wide card" : "fleet-side card"} aria-label=${title}>
    <header><h2>${title}</h2><${Button} icon="close" aria-label="Close" onClick=${onClose} /></header>${children}</aside>`;
}
