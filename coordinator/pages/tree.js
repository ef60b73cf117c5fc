// The relay tree: as columns for few nodes, as rings for many, and as a list on request.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "/web/vendor/htm-preact.js";
import { count, duration, known, NOTHING, percent, plural, rate } from "/web/format.js";
import { Meter } from "/web/parts.js";
import { asRings, asRows, inReadingOrder, lineWidth, pathUp, ringCurve, rowCurve, spanning } from "./tree_layout.js";

const FEW = 36; // nodes that columns can show at one glance
const NODE = { tall: 28, gap: 10 };
const REGION = { tall: 44, gap: 12 };
const LETTER = { node: 7.1, ring: 5.7 }; // width in pixels
const NAME_MOST = 26; // letters
const RING_LABELS_MAX = 260;

export const shapeFor = (nodes, width) => (width && width < 640 ? "list" : nodes.length <= FEW ? "rows" : "rings");

/**
 * Args:
 *   tree: as /api/v1/broadcast gives it. stripe: null for all. shape: rows, rings or list.
 *   slowest: names of the slowest branch, from the origin on.
 */
export function RelayTree({ tree, stripe, shape, slowest }) {
  const [pointed, setPointed] = useState(null);
  const [picked, setPicked] = useState(null);
  const before = useRef(new Map());
  const placed = useMemo(() => spanning(tree.nodes, tree.edges, { stripe, before: before.current }), [tree, stripe]);
  useEffect(() => { before.current = new Map([...placed.values()].filter((one) => one.edge).map((one) => [one.node.id, one.edge.source])); }, [placed]);
  const at = placed.has(pointed) ? pointed : placed.has(picked) ? picked : null;
  const slow = useMemo(() => slowHops(placed, slowest), [placed, slowest]);
  const shown = { tree, placed, stripe, at, slow, path: new Set(at ? pathUp(placed, at) : []), onPoint: setPointed, onPick: (id) => setPicked(id === picked ? null : id) };
  if (shape === "list") return html`<${AsList} ...${shown} />`;
  return html`<div class="tree"><${Told} ...${shown} />${shape === "rows" ? html`<${AsRows} ...${shown} />` : html`<${AsRings} ...${shown} />`}<${Legend} isSlow=${slow.length > 0} /></div>`;
}

/** [[source, target]] of the slowest branch, as far as its members are shown. */
function slowHops(placed, names) {
  const ids = new Map([...placed.values()].map((one) => [one.node.name, one.node.id]));
  const path = (names || []).map((name) => ids.get(name));
  return path.slice(1).map((id, at) => [path[at], id]).filter(([source, target]) => source && target);
}

const toneOf = (node) => (node.role === "origin" ? "origin" : node.share_held >= 1 ? "held" : node.share_held > 0 ? "partly" : "none");

function kindOf(id, { placed, path, at }) {
  return ["hop", path.has(id) && "on", at && !path.has(id) && placed.get(id).edge?.source !== at && "off"].filter(Boolean).join(" ");
}

/** The path of a hop's chunks; before the link is open, "LAN" if the plan keeps the hop in one network. */
const wayOf = (edge) => (edge.transport ? edge.transport.replaceAll("+", ", ") : edge.lan ? "LAN" : "");

/** One line about the node under the pointer, or about all nodes. */
function Told({ tree, placed, stripe, at }) {
  if (!at) {
    const depth = Math.max(0, ...[...placed.values()].map((one) => one.depth));
    const loose = [...placed.values()].filter((one) => one.loose).length;
    const what = tree.by_region ? `${plural(tree.nodes.length - 1, "region")}, ${plural(tree.nodes.reduce((sum, one) => sum + (one.role === "origin" ? 0 : one.peers), 0), "peer")}` : plural(tree.nodes.length, "node");
    return html`<p class="tree-told muted">${what}, ${plural(depth, "hop")} deep${stripe === null ? "" : `, stripe ${stripe}`}${loose ? `, ${count(loose)} that no hop reaches` : ""}. Point at a node to see its hops.</p>`;
  }
  const { node, edge, children } = placed.get(at);
  const from = edge && placed.get(edge.source)?.node.name;
  const parents = tree.edges.filter((hop) => hop.target === at && (stripe === null || hop.stripes.includes(stripe))).length;
  return html`<p class="tree-told"><b>${node.name}</b><span>${node.region}</span>${node.peers > 1 && html`<span>${plural(node.peers, "peer")}</span>`}
    <span>holds ${percent(node.share_held)}</span>${known(node.slowest_s) && html`<span>T_bcast ${duration(node.slowest_s)}</span>`}
    ${edge && html`<span>from ${from}${parents > 1 ? ` and ${parents - 1} more` : ""}: ${rate(edge.bytes_per_s)}, RTT ${duration(edge.rtt_s)}, ${wayOf(edge) || "link"}</span>`}
    <span>${children.length ? `relays to ${count(children.length)}` : "relays to no peer"}</span></p>`;
}

const Legend = ({ isSlow }) => html`<p class="tree-legend muted small"><span class="tree-key held"></span>holds the newest version <span class="tree-key partly"></span>is receiving it <span class="tree-key none"></span>has none of it
  <span class="tree-key line"></span>wider: faster hop ${isSlow && html`<span class="tree-key line slow"></span>slowest branch`}</p>`;

// ---------------------------------------------------------------- columns

function AsRows(shown) {
  const { tree, placed, onPoint, onPick } = shown;
  const frame = useRef(null), room = useWidth(frame);
  const size = sizeOf(tree);
  const { width, height, places } = asRows(placed, { width: room - 4, wide: size.wide, tall: size.tall + size.gap });
  const summary = `Relay tree of ${plural(placed.size, "node")}; the list shows the same as text`;
  return html`<div class="tree-frame" ref=${frame} tabindex="0" role="group" aria-label="Relay tree">
    <svg role="img" aria-label=${summary} width=${width + 2} height=${height} viewBox="-1 0 ${width + 2} ${height}">
      ${[...placed.values()].filter((one) => one.edge).map(({ node, edge }) => html`<path key=${node.id} class=${kindOf(node.id, shown)} d=${rowCurve(places.get(edge.source), places.get(node.id), size.wide)} stroke-width=${lineWidth(edge.bytes_per_s)} />`)}
      <${Slow} ...${shown} curve=${(from, to) => rowCurve(places.get(from), places.get(to), size.wide)} />
      <${Others} ...${shown} curve=${(from, to) => rowCurve(places.get(from), places.get(to), size.wide)} />
      ${[...placed.values()].filter((one) => one.edge && one.edge.bytes_per_s > 0).map(({ node, edge }) => html`<text key=${node.id} class="hop-rate" x=${places.get(node.id).x - 7} y=${places.get(node.id).y - 4} text-anchor="end">${rate(edge.bytes_per_s)}</text>`)}
      ${[...placed.keys()].map((id) => html`<${Chip} key=${id} node=${placed.get(id).node} place=${places.get(id)} size=${size} at=${shown.at === id} onPoint=${onPoint} onPick=${onPick} />`)}
    </svg></div>`;
}

/** Chips as wide as the longest name. */
function sizeOf({ by_region: byRegion, nodes }) {
  const longest = Math.min(NAME_MOST, Math.max(...nodes.map((one) => one.name.length)));
  return { ...(byRegion ? REGION : NODE), byRegion, wide: Math.round(Math.max(byRegion ? 168 : 110, longest * LETTER.node + 38)) };
}

function Chip({ node, place, size, at, onPoint, onPick }) {
  const top = place.y - size.tall / 2;
  return html`<g class=${`chip-node ${toneOf(node)}${at ? " at" : ""}`} onPointerEnter=${() => onPoint(node.id)} onPointerLeave=${() => onPoint(null)} onClick=${() => onPick(node.id)}>
    <rect x=${place.x} y=${top} width=${size.wide} height=${size.tall} rx="7" />
    <circle cx=${place.x + 14} cy=${size.byRegion ? top + 15 : place.y} r="4" />
    <text x=${place.x + 25} y=${size.byRegion ? top + 19 : place.y + 4}>${cut(node.name, NAME_MOST)}</text>
    ${size.byRegion && html`<text class="sub" x=${place.x + 25} y=${top + 34}>${node.role === "origin" ? "origin" : `${count(node.peers)} · ${percent(node.share_held)} · ${duration(node.slowest_s)}`}</text>`}
    ${node.share_held > 0 && node.share_held < 1 && html`<rect class="share" x=${place.x + 7} y=${top + size.tall - 3} width=${(size.wide - 14) * node.share_held} height="2" rx="1" />`}
  </g>`;
}

const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

/** The hops of the slowest branch in this tree; in another stripe the branch has other hops. */
const Slow = ({ placed, slow, curve }) => slow.filter(([source, target]) => placed.get(target).edge?.source === source)
  .map(([source, target]) => html`<path key=${source + target} class="hop slow" d=${curve(source, target)} />`);

/** Further hops of the node under the pointer, which are not part of the tree. */
function Others({ tree, placed, at, stripe, curve }) {
  if (!at) return null;
  const more = tree.edges.filter((hop) => hop.source !== hop.target && (hop.target === at || hop.source === at) && placed.has(hop.source) && placed.has(hop.target)
    && (stripe === null || hop.stripes.includes(stripe)) && placed.get(hop.target).edge !== hop);
  return more.map((hop) => html`<path key=${hop.source + hop.target} class="hop other" d=${curve(hop.source, hop.target)} />`);
}

// ---------------------------------------------------------------- rings

const nameRoom = (nodes) => Math.round(Math.min(NAME_MOST, Math.max(...nodes.map((one) => one.name.length))) * LETTER.ring + 16);

function AsRings(shown) {
  const { tree, placed, at, path, onPoint, onPick } = shown;
  const frame = useRef(null), room = useWidth(frame);
  const size = Math.min(940, Math.max(440, Math.min(room, 220 + placed.size * 6)));
  const { places } = asRings(placed, { size, margin: placed.size <= RING_LABELS_MAX ? nameRoom(tree.nodes) : 16 });
  const isLabelled = (id) => id === at || path.has(id) || placed.size <= FEW || (placed.size <= RING_LABELS_MAX && (!placed.get(id).children.length || placed.get(id).depth === 0));
  return html`<div class=${`tree-frame rings${placed.size <= 2 * FEW ? " few" : ""}`} ref=${frame} tabindex="0" role="group" aria-label="Relay tree">
    <svg role="img" aria-label=${`Relay tree of ${plural(placed.size, "node")}; the list shows the same as text`} width=${size} height=${size} viewBox="0 0 ${size} ${size}">
      ${[...placed.values()].filter((one) => one.edge).map(({ node, edge }) => html`<path key=${node.id} class=${kindOf(node.id, shown)} d=${ringCurve(places.get(edge.source), places.get(node.id), size / 2)} stroke-width=${lineWidth(edge.bytes_per_s) * 0.8} />`)}
      <${Slow} ...${shown} curve=${(from, to) => ringCurve(places.get(from), places.get(to), size / 2)} />
      <${Others} ...${shown} curve=${(from, to) => ringCurve(places.get(from), places.get(to), size / 2)} />
      ${[...placed.keys()].map((id) => html`<${Dot} key=${id} node=${placed.get(id).node} place=${places.get(id)} label=${isLabelled(id)} isRoot=${placed.get(id).depth === 0 && !placed.get(id).loose}
        leaf=${!placed.get(id).children.length} at=${id === at} dim=${at && !path.has(id) && placed.get(id).edge?.source !== at} onPoint=${onPoint} onPick=${onPick} />`)}
    </svg></div>`;
}

function Dot({ node, place, label, isRoot, leaf, at, dim, onPoint, onPick }) {
  const isLeft = Math.cos(place.angle) < 0 && !isRoot;
  const turned = `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})${isRoot ? "" : ` rotate(${((place.angle * 180) / Math.PI + (isLeft ? 180 : 0)).toFixed(1)})`}`;
  return html`<g class=${`dot ${toneOf(node)}${at ? " at" : ""}${dim ? " dim" : ""}`} transform=${turned} onPointerEnter=${() => onPoint(node.id)} onPointerLeave=${() => onPoint(null)} onClick=${() => onPick(node.id)}>
    <circle class="target" r="9" /><circle r=${isRoot ? 7 : leaf ? 3.2 : 4.4} />
    ${node.share_held > 0 && node.share_held < 1 && html`<circle class="share" r="5.6" pathLength="1" stroke-dasharray=${`${node.share_held.toFixed(3)} 1`} />`}
    ${label && html`<text x=${isRoot ? 0 : isLeft ? -9 : 9} y=${isRoot ? -13 : 3.4} text-anchor=${isRoot ? "middle" : isLeft ? "end" : "start"}>${cut(node.name, NAME_MOST)}</text>`}
  </g>`;
}

// ---------------------------------------------------------------- a list

function AsList({ placed, slow, tree }) {
  const isSlow = new Set(slow.map(([, target]) => target));
  return html`<div class="tree-list" tabindex="0" role="group" aria-label="Relay tree as a list"><table>
    <thead><tr><th scope="col">${tree.by_region ? "Region" : "Peer"}</th><th scope="col">Holds</th><th scope="col" class="num">Hop rate</th><th scope="col" class="num wide-only">RTT</th><th scope="col" class="wide-only">Link</th><th scope="col" class="num wide-only">Stripes</th><th scope="col" class="num">T_bcast</th></tr></thead>
    <tbody>${inReadingOrder(placed).map((id) => html`<${Line} key=${id} one=${placed.get(id)} isSlow=${isSlow.has(id)} />`)}</tbody>
  </table></div>`;
}

function Line({ one: { node, edge, depth, loose }, isSlow }) {
  return html`<tr class=${isSlow ? "slow" : ""}>
    <th scope="row"><span class="indent" style=${{ paddingLeft: `${Math.min(depth, 9) * 14}px` }}>${depth > 0 && html`<span class="elbow" aria-hidden="true"></span>`}<span class="hidden">${plural(depth, "hop")} deep: </span>${node.name}
      ${node.peers > 1 && html`<span class="muted"> ${plural(node.peers, "peer")}</span>`}${loose && html`<span class="muted"> no hop</span>`}${isSlow && html`<span class="hidden"> slowest branch</span>`}</span></th>
    <td>${node.role === "origin" ? html`<span class="muted">origin</span>` : html`<${Meter} value=${node.share_held} label=${`${node.name} holds`} tone=${node.share_held >= 1 ? "good" : ""} />`}</td>
    <td class="num">${edge ? rate(edge.bytes_per_s) : NOTHING}</td><td class="num wide-only">${edge ? duration(edge.rtt_s) : NOTHING}</td>
    <td class="wide-only">${edge ? wayOf(edge) : ""}</td><td class="num wide-only">${edge ? count(edge.stripes.length) : ""}</td><td class="num">${duration(node.slowest_s)}</td></tr>`;
}

/** An element's width in pixels, followed. */
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setWidth(ref.current.clientWidth));
    observer.observe(ref.current);
    setWidth(ref.current.clientWidth);
    return () => observer.disconnect();
  }, []);
  return width;
}
