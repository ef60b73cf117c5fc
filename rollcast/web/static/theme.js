// The theme: light, dark, or the system's.
import { createStore } from "./store.js";

const KEY = "rollcast-theme";
export const THEMES = ["system", "light", "dark"];
export const theme = createStore(document.documentElement.dataset.theme || "system");

/** The theme on screen: "light" or "dark". */
export const shade = createStore("light");
const systemDark = matchMedia("(prefers-color-scheme: dark)");

function settle() {
  const chosen = theme.get();
  shade.set(chosen === "system" ? (systemDark.matches ? "dark" : "light") : chosen);
}

export function setTheme(chosen) {
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  try {
    if (chosen === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, chosen);
  } catch { /* storage is switched off: it holds until the page is closed */ }
  theme.set(chosen);
  settle();
}

export function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(theme.get()) + 1) % THEMES.length]);
}

systemDark.addEventListener("change", settle);
settle();

/** A design token in the form that a canvas accepts, e.g. colour("accent") -> "rgb(47, 95, 208)". */
export function colour(token) {
  if (!probe) {
    probe = document.createElement("i");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(--${token})`;
  return getComputedStyle(probe).color;
}
let probe = null;
