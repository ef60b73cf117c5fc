// The pages, in the order of the navigation. Each is loaded when it is first opened.

export const PAGES = [
  { name: "overview", title: "Overview", key: "o", load: () => import("./overview.js") },
  { name: "workers", title: "Workers", key: "w", load: () => import("./workers.js") },
  { name: "broadcast", title: "Broadcast", key: "b", load: () => import("./broadcast.js") },
  { name: "run", title: "Run", key: "r", load: () => import("./run.js") },
  { name: "rollouts", title: "Rollouts", key: "l", load: () => import("./rollouts.js") },
  { name: "capacity", title: "Capacity", key: "c", load: () => import("./capacity.js") },
  { name: "events", title: "Events", key: "e", load: () => import("./events.js") },
  { name: "invites", title: "Invites", key: "i", load: () => import("./invites.js"), below: true },
  { name: "settings", title: "Settings", key: "s", load: () => import("./settings.js"), below: true },
];

export const pageNamed = (name) => PAGES.find((page) => page.name === (name || "overview"));
