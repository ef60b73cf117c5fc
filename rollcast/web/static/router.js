// Pages by the address's fragment: "#/run?run=a&with=b". Browsers never send the fragment to the server.
import { createStore, useStore } from "./store.js";

function parse() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/").map(decodeURIComponent);
  return { page, rest, params: Object.fromEntries(new URLSearchParams(query)) };
}

/** {page: "events", rest: ["1234"], params: {kind: "lease"}} of "#/events/1234?kind=lease". */
export const route = createStore(parse());
addEventListener("hashchange", () => route.set(parse()));

export const useRoute = () => useStore(route);

/** The address of a page, for links. Empty parameters are left out. */
export function href(page, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const path = "#/" + page.split("/").map(encodeURIComponent).join("/");
  return given.length ? path + "?" + new URLSearchParams(given) : path;
}

export function go(page, params) {
  location.hash = href(page, params);
}

/** Changes parameters of this page in place; empty ones are left out. The browser's history gets no entry. */
export function setParams(changes) {
  const { page, rest, params } = route.get();
  history.replaceState(null, "", href([page, ...rest].join("/"), { ...params, ...changes }));
  route.set(parse());
}
