// The frame of all pages: navigation, the run's head line, the page that the address names, dialogs.
import { html, render, useCallback, useEffect, useRef, useState } from "/web/vendor/htm-preact.js";
import { takeTokenFromAddress } from "/web/api.js";
import { Arrival, Button, Dialog, Empty, Icon, Menu, Problem, Toasts } from "/web/parts.js";
import { href, useRoute } from "/web/router.js";
import { useStore } from "/web/store.js";
import { useTopic } from "/web/stream.js";
import { setTheme, theme } from "/web/theme.js";
import { Head, Notice } from "./head.js";
import { KEYS, useKeys } from "./keys.js";
import { pageNamed, PAGES } from "./pages.js";
import { askToSignIn, loadSession, signOut, useMay, useSession } from "./session.js";
import { SignIn } from "./signin.js";

const THEME_NAMES = { system: "System", light: "Light", dark: "Dark" };

function Navigation({ current, alerts, onHelp, onPage }) {
  const link = (page) => html`<a key=${page.name} href=${href(page.name)} aria-current=${page.name === current ? "page" : undefined} onClick=${onPage} title="g ${page.key}">
    <${Icon} name=${page.name} /><span>${page.title}</span>
    ${page.name === "overview" && alerts > 0 && html`<span class="nav-count" aria-label="${alerts} alerts">${alerts}</span>`}</a>`;
  return html`<div class="nav-inner">
    <a class="brand" href=${href("overview")} onClick=${onPage}><img src="/icon.svg" alt="" width="22" height="22" /><span>Rollcast</span></a>
    <nav aria-label="Pages">${PAGES.filter((page) => !page.below).map(link)}<div class="nav-line"></div>${PAGES.filter((page) => page.below).map(link)}</nav>
    <div class="nav-foot"><${Person} /><${ThemeMenu} /><${Button} icon="help" aria-label="Keyboard shortcuts and links" title="?" onClick=${onHelp} /></div>
  </div>`;
}

function Person() {
  const { asked, who, access } = useSession();
  const signed = useMay("operator");
  if (!asked) return html`<span class="nav-who"></span>`;
  if (!signed) return html`<${Button} icon="key" className="nav-who" onClick=${() => askToSignIn()}>Sign in<//>`;
  const items = [{ label: "Sign out", note: access, icon: "out", onClick: signOut }];
  return html`<span class="nav-who"><${Menu} label=${who} icon="user" kind="quiet" title="Signed in as ${who}, ${access}" items=${items} align="start" /></span>`;
}

function ThemeMenu() {
  const chosen = useStore(theme);
  const items = Object.entries(THEME_NAMES).map(([name, label]) => ({ label, icon: name, note: name === chosen ? "✓" : "", onClick: () => setTheme(name) }));
  return html`<${Menu} label="Theme: ${THEME_NAMES[chosen]}" hideLabel icon=${chosen} items=${items} />`;
}

function Help({ open, onClose }) {
  return html`<${Dialog} open=${open} title="Keyboard and links" onClose=${onClose}>
    <dl class="keys">${KEYS.map(([keys, what]) => html`<div key=${what}><dt>${keys.map((key, index) => html`${index > 0 && html`<span class="muted small"> then </span>`}<kbd>${key}</kbd>`)}</dt><dd>${what}</dd></div>`)}</dl>
    <p class="muted small">For programs: <a href="/api/v1/openapi.json">OpenAPI</a>, <a href="/metrics">metrics</a>, <a href="/health">health</a>, <a href="/ready">ready</a>.</p>
  <//>`;
}

/** The module of a page, loaded once: {Page} or {error}. */
function usePage(page) {
  const [loaded, setLoaded] = useState({});
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    if (!page) return;
    let here = true;
    page.load().then(
      (module) => here && setLoaded({ name: page.name, Page: module.Page }),
      (error) => here && setLoaded({ name: page.name, error }),
    );
    return () => { here = false; };
  }, [page, attempt]);
  return [loaded.name === page?.name ? loaded : {}, () => setAttempt(attempt + 1)];
}

function Content({ page, overview }) {
  const route = useRoute();
  const [{ Page, error }, retry] = usePage(page);
  if (!page) return html`<${Empty} title="This page does not exist">Choose a page from the navigation.<//>`;
  if (error) return html`<${Problem} error=${{ what: "This page could not be loaded.", cause: error.message }} retry=${retry} />`;
  return Page ? html`<${Page} overview=${overview} params=${route.params} rest=${route.rest} />` : null;
}

function App() {
  const { page: name } = useRoute();
  const page = pageNamed(name);
  const overview = useTopic("overview");
  const [help, setHelp] = useState(false);
  const [drawer, setDrawer] = useState(false);
  const arrival = useRef({ wanted: false }).current;
  const before = useRef(name);
  useKeys(useCallback(() => setHelp(true), []));
  useEffect(() => { loadSession().catch(() => {}); }, []);
  useEffect(() => {
    setDrawer(false);
    scrollTo(0, 0);
    arrival.wanted = name !== before.current;
    before.current = name;
  }, [name]);
  useEffect(() => {
    document.title = [page?.title, overview?.run_name, "Rollcast"].filter(Boolean).join(" · ");
  }, [page, overview?.run_name]);
  const navigation = html`<${Navigation} current=${page?.name} alerts=${overview?.alerts?.length || 0} onHelp=${() => { setDrawer(false); setHelp(true); }} onPage=${() => setDrawer(false)} />`;
  return html`<${Arrival.Provider} value=${arrival}>
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content").focus(); }}>Skip to the content</a>
    <aside class="side">${navigation}</aside>
    <${Dialog} open=${drawer} title="Pages" onClose=${() => setDrawer(false)}>${navigation}<//>
    <div class="body">
      <${Head} overview=${overview} onMenu=${() => setDrawer(true)} onOverview=${page?.name === "overview"} />
      <${Notice} overview=${overview} />
      <main id="content" tabindex="-1"><${Content} page=${page} overview=${overview} /></main>
    </div>
    <${Help} open=${help} onClose=${() => setHelp(false)} />
    <${SignIn} />
    <${Toasts} />
  <//>`;
}

takeTokenFromAddress();
const root = document.getElementById("app");
root.replaceChildren(); // the placeholder shown while loading
render(html`<${App} />`, root);
