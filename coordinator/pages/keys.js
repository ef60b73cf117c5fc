// The keyboard: "g" and a page's letter, "?" for help, "t" for the theme, "/" for the page's search.
import { useEffect } from "/web/vendor/htm-preact.js";
import { go } from "/web/router.js";
import { nextTheme } from "/web/theme.js";
import { PAGES } from "./pages.js";

const LEADER_MS = 1500; // between "g" and the letter

export const KEYS = [
  ...PAGES.map((page) => [["g", page.key], page.title]),
  [["/"], "Search on this page"],
  [["t"], "Switch between light, dark and system theme"],
  [["?"], "Show this help"],
  [["Esc"], "Close the open dialog or panel"],
];

const typing = (element) => element?.closest?.("input, textarea, select, [contenteditable]");

/** Args: onHelp: opens the help. */
export function useKeys(onHelp) {
  useEffect(() => {
    let leaderAt = -Infinity;
    const onKeyDown = (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
      if (document.querySelector("dialog[open]")) return;
      const key = event.key.toLowerCase();
      const page = event.timeStamp - leaderAt < LEADER_MS && PAGES.find((one) => one.key === key);
      leaderAt = key === "g" && !page ? event.timeStamp : -Infinity;
      if (page) go(page.name);
      else if (key === "?") onHelp();
      else if (key === "t") nextTheme();
      else if (key === "/") document.querySelector("[data-search]")?.focus();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, [onHelp]);
}
