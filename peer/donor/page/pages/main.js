// The owner's page of one machine: the head with its acts, and the page that the address names.
import { html, render, useEffect, useRef } from "/web/vendor/htm-preact.js";
import { takeTokenFromAddress, token } from "/web/api.js";
import { Arrival, Badge, Empty, Icon, Menu, Toasts } from "/web/parts.js";
import { href, useRoute } from "/web/router.js";
import { useStore } from "/web/store.js";
import { connection, useTopic } from "/web/stream.js";
import { setTheme, theme } from "/web/theme.js";
import { Acts } from "./acts.js";
import { Limits } from "./limits.js";
import { Log } from "./log.js";
import { Machine } from "./machine.js";
import { Now } from "./now.js";
import { Rollouts } from "./rollouts.js";
import { stateOf } from "./words.js";

const PAGES = [
  { name: "now", title: "Now", Page: Now },
  { name: "rollouts", title: "Rollouts", Page: Rollouts },
  { name: "limits", title: "Limits", Page: Limits },
  { name: "log", title: "Log", Page: Log },
  { name: "machine", title: "This machine", Page: Machine },
];
const THEME_NAMES = { system: "System", light: "Light", dark: "Dark" };
const LOST_MS = 4000; // a shorter silence only means that the peer is busy

function ThemeMenu() {
  const chosen = useStore(theme);
  const items = Object.entries(THEME_NAMES).map(([name, label]) => ({ label, icon: name, note: name === chosen ? "✓" : "", onClick: () => setTheme(name) }));
  return html`<${Menu} label="Theme: ${THEME_NAMES[chosen]}" hideLabel icon=${chosen} items=${items} />`;
}

function Head({ report, current }) {
  const state = stateOf(report);
  const link = ({ name, title }) => html`<a key=${name} href=${href(name)} aria-current=${name === current ? "page" : undefined}>${title}</a>`;
  return html`<header class="head">
    <div class="head-row">
      <a class="brand" href=${href("now")} aria-label="Rollcast, this machine"><img src="/icon.svg" alt="" width="24" height="24" /><span class="head-name">${report?.name || "This machine"}</span></a>
      ${report && html`<span class="head-state"><${Badge} tone=${state.tone}>${state.title}<//></span>`}
      <div class="head-acts">${report && html`<${Acts} report=${report} />`}<${ThemeMenu} /></div>
    </div>
    <nav aria-label="Pages">${PAGES.map(link)}</nav>
  </header>`;
}

function Notices({ report }) {
  const { name, lastMs } = useStore(connection);
  const gone = (name === "lost" || name === "connecting") && lastMs && Date.now() - lastMs > LOST_MS;
  const newer = report?.newer_release;
  return html`<div class="notices" role="status">
    ${gone && html`<p class="notice warn"><${Icon} name="warning" /><span>The peer does not answer. It was stopped or is restarting, and what you see is from before. Run <code>rollcast peer status</code> to find out more.</span></p>`}
    ${newer && html`<p class="notice"><${Icon} name="info" /><span>The run uses Rollcast <b>${newer.theirs}</b>, this machine ${newer.ours}. To upgrade: ${newer.how}.</span></p>`}
  </div>`;
}

function Content({ page, report, refused }) {
  if (refused || !token.get()) {
    return html`<${Empty} icon="key" title="This page requires its token">Run <code>rollcast peer page --open</code> on this machine to open the page with its token.<//>`;
  }
  if (!page) return html`<${Empty} title="This page does not exist">Choose a page above.<//>`;
  return report ? html`<${page.Page} report=${report} />` : html`<div class="loading" aria-busy="true"></div>`;
}

function App() {
  const { page: name } = useRoute();
  const current = name || "now";
  const page = PAGES.find((one) => one.name === current);
  const report = useTopic("report");
  const refused = useStore(connection).name === "refused";
  const arrival = useRef({ wanted: false }).current;
  const before = useRef(current);
  useEffect(() => {
    scrollTo(0, 0);
    arrival.wanted = current !== before.current;
    before.current = current;
  }, [current]);
  useEffect(() => {
    document.title = [report && `${stateOf(report).title}: ${report.name}`, page?.title, "Rollcast"].filter(Boolean).join(" · ");
  }, [page, report?.name, report?.state]);
  return html`<${Arrival.Provider} value=${arrival}>
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content").focus(); }}>Skip to the content</a>
    <${Head} report=${report} current=${current} />
    <${Notices} report=${report} />
    <main id="content" tabindex="-1"><${Content} page=${page} report=${report} refused=${refused} /></main>
    <${Toasts} />
  <//>`;
}

takeTokenFromAddress();
render(html`<${App} />`, document.getElementById("app"));
