// Icons, 16 by 16, in the colour of the text next to them. Screen readers skip them and read the text.
import { html } from "./vendor/htm-preact.js";

const PATHS = {
  overview: "M2.5 2.5h4.5v5H2.5zM9 2.5h4.5v3H9zM9 8h4.5v5.5H9zM2.5 10h4.5v3.5H2.5z",
  workers: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  broadcast: "M8 4.5v2.5M8 7 4.5 10.5M8 7l3.5 3.5M8 4.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM4 14a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM12 14a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3z",
  run: "M2 13.5h12M2.5 11 6 6.5l2.5 2.5L13.5 3M10.5 3h3v3",
  rollouts: "M2.5 3h11v7.5H8L5 13.5v-3H2.5zM5 5.8h6M5 7.9h4",
  capacity: "M2.5 12.5a6 6 0 1 1 11 0M8 10.5l3-4M8 11.5a1 1 0 1 0 0-2 1 1 0 0 0 0 2z",
  events: "M5.5 4h8M5.5 8h8M5.5 12h8M2.5 4h.01M2.5 8h.01M2.5 12h.01",
  invites: "M6.5 7.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM2 13.5c0-2.5 2-4 4.5-4 1 0 1.9.2 2.7.7M12 9.5v4.5M9.75 11.75h4.5",
  settings: "M2.5 4.5h6M12 4.5h1.5M10.25 6.25a1.75 1.75 0 1 0 0-3.5 1.75 1.75 0 0 0 0 3.5zM2.5 11.5H4M7.5 11.5h6M5.75 13.25a1.75 1.75 0 1 0 0-3.5 1.75 1.75 0 0 0 0 3.5z",
  light: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M12.6 3.4l-.7.7M4.1 11.9l-.7.7",
  dark: "M13 9.8A5.5 5.5 0 0 1 6.2 3a5.5 5.5 0 1 0 6.8 6.8z",
  system: "M2 3h12v8H2zM6 13.5h4M8 11v2.5",
  help: "M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM6.2 6.2c.1-1 .8-1.6 1.8-1.6s1.8.7 1.8 1.6C9.8 7.5 8 7.5 8 9M8 11.3h.01",
  menu: "M2.5 4h11M2.5 8h11M2.5 12h11",
  close: "M4 4l8 8M12 4l-8 8",
  check: "M3 8.5 6.5 12 13 4.5",
  warning: "M8 2.2 14.3 13H1.7zM8 6.5v3M8 11.2h.01",
  critical: "M5.4 1.8h5.2l3.6 3.6v5.2l-3.6 3.6H5.4l-3.6-3.6V5.4zM8 4.8v4M8 11h.01",
  info: "M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM8 7.3v4M8 4.9h.01",
  copy: "M5.5 5.5h8v8h-8zM3 10.5h-.5v-8h8V3",
  chevron: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.4 10.4 14 14",
  user: "M8 8a2.8 2.8 0 1 0 0-5.6A2.8 2.8 0 0 0 8 8zM2.8 14c.4-2.6 2.5-4 5.2-4s4.8 1.4 5.2 4",
  key: "M5.5 13a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM7.7 7.8 13.5 2M11 4.5l2 2",
  out: "M9.5 2.5h-7v11h7M6.5 8h7.5M11.5 5.5 14 8l-2.5 2.5",
  pause: "M5.5 3v10M10.5 3v10",
  play: "M4.5 2.8v10.4l8.5-5.2z",
  stop: "M3.5 3.5h9v9h-9z",
  plus: "M8 3v10M3 8h10",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  link: "M6.8 9.2a2.6 2.6 0 0 0 3.7 0l2.3-2.3a2.6 2.6 0 0 0-3.7-3.7l-.9.9M9.2 6.8a2.6 2.6 0 0 0-3.7 0L3.2 9.1a2.6 2.6 0 0 0 3.7 3.7l.9-.9",
  sort: "M5 13V3M2.5 5.5 5 3l2.5 2.5M11 3v10M8.5 10.5 11 13l2.5-2.5",
};

/** Args: name: one of PATHS; size in pixels. */
export function Icon({ name, size = 16 }) {
  return html`<svg class="icon icon-${name}" width=${size} height=${size} viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d=${PATHS[name] || ""} /></svg>`;
}
