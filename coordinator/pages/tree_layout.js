// Positions of a relay tree's peers. Plain data in, plain data out; no screen.

const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/** The stripes that a plan has, in order. */
export function stripesOf(edges) {
  return [...new Set(edges.flatMap((edge) => edge.stripes))].sort((one, other) => one - other);
}

/**
 * The tree over which versions spread: each node under one parent, breadth first from the origins.
 *
 * Of several parents at the least depth the one of `before` (Map of id -> parent's id) counts, so that the picture stays still while
 * rates change; else the fastest measured hop; of unmeasured ones the parent with the fewest children.
 * With a `stripe` only the hops that carry it. Nodes that no hop reaches are roots of their own, marked `loose`.
 *
 * Returns: Map of id -> {node, depth, edge (to the parent, null for roots), children: [ids in order], loose}.
 */
export function spanning(nodes, edges, { stripe = null, before = new Map() } = {}) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const hops = edges.filter((edge) => edge.source !== edge.target && byId.has(edge.source) && byId.has(edge.target)
    && (stripe === null || edge.stripes.includes(stripe)));
  const fed = new Set(hops.map((hop) => hop.target)), feeds = new Set(hops.map((hop) => hop.source));
  const into = grouped(hops, (hop) => hop.source);
  const placed = new Map();
  const origins = nodes.filter((node) => node.role === "origin" || (!fed.has(node.id) && feeds.has(node.id)));
  for (const node of origins) placed.set(node.id, { node, depth: 0, edge: null, children: [], loose: false });
  grow(placed, origins.map((node) => node.id), into, byId, before);
  for (const node of nodes) {
    if (placed.has(node.id)) continue;
    placed.set(node.id, { node, depth: 0, edge: null, children: [], loose: true });
    grow(placed, [node.id], into, byId, before);
  }
  for (const one of placed.values()) one.children.sort((id, other) => inOrder(byId.get(id), byId.get(other)));
  return placed;
}

function grow(placed, level, into, byId, before) {
  for (let depth = 1; level.length; depth += 1) {
    const offers = grouped(level.flatMap((id) => into.get(id) || []).filter((hop) => !placed.has(hop.target)), (hop) => hop.target);
    const children = new Map(level.map((id) => [id, 0]));
    for (const [target, hops] of offers) {
      const kept = hops.find((hop) => hop.source === before.get(target));
      const edge = kept || hops.reduce((best, hop) => (better(hop, best, children) ? hop : best));
      children.set(edge.source, children.get(edge.source) + 1);
      placed.set(target, { node: byId.get(target), depth, edge, children: [], loose: false });
      placed.get(edge.source).children.push(target);
    }
    level = [...offers.keys()];
  }
}

function better(hop, best, children) {
  const rate = hop.bytes_per_s || 0, bestRate = best.bytes_per_s || 0;
  return rate > bestRate || (rate === bestRate && children.get(hop.source) < children.get(best.source));
}

function grouped(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (groups.has(key)) groups.get(key).push(item);
    else groups.set(key, [item]);
  }
  return groups;
}

const inOrder = (one, other) => words.compare(one.region || "", other.region || "") || words.compare(one.name, other.name);

/** Ids from the top: each root, its first child with all below it, and so on. Loose nodes come last. */
export function inReadingOrder(tree) {
  const ids = [];
  const walk = (id) => { ids.push(id); tree.get(id).children.forEach(walk); };
  const roots = [...tree.values()].filter((one) => one.depth === 0);
  roots.sort((one, other) => one.loose - other.loose || inOrder(one.node, other.node));
  roots.forEach((one) => walk(one.node.id));
  return ids;
}

/** Ids from a node up to its root. */
export function pathUp(tree, id) {
  const path = [];
  for (let at = id; at && !path.includes(at); at = tree.get(at)?.edge?.source) if (tree.has(at)) path.push(at);
  return path;
}

/** A slot for each leaf, in reading order; a parent stands in the middle of its children's. */
function slots(tree, gap) {
  const at = new Map();
  let next = 0, before = null;
  const walk = (id) => {
    const { children, edge } = tree.get(id);
    if (!children.length) {
      const parent = edge ? edge.source : id;
      if (before !== null && before !== parent) next += gap;
      before = parent;
      at.set(id, next);
      next += 1;
    } else {
      children.forEach(walk);
      at.set(id, (at.get(children[0]) + at.get(children.at(-1))) / 2);
    }
  };
  inReadingOrder(tree).filter((id) => tree.get(id).depth === 0).forEach(walk);
  return { at, count: next };
}

const deepest = (tree) => Math.max(0, ...[...tree.values()].map((one) => one.depth));

/**
 * From left to right, a column for each depth. Lengths in pixels: of the picture, of a node (`wide`), of a row (`tall`).
 * Returns {width, height, places: Map of id -> {x, y}}: the left middle of each node.
 */
export function asRows(tree, { width, wide, tall }) {
  const { at, count } = slots(tree, 0.3);
  const depth = deepest(tree);
  const step = depth ? Math.max(wide + 76, Math.min(wide + 260, (width - wide) / depth)) : 0;
  const places = new Map();
  for (const [id, slot] of at) places.set(id, { x: Math.round(tree.get(id).depth * step), y: Math.round((slot + 0.5) * tall) });
  return { width: Math.round(depth * step + wide), height: Math.ceil(Math.max(1, count) * tall), places };
}

/**
 * Around a centre: leaves on the rim, one angle each, so that every name can be read; the others on a ring for their depth.
 * `size`: of the square picture; `margin`: kept for names.
 * Returns {width, height, places: Map of id -> {x, y, angle (radians), radius}}.
 */
export function asRings(tree, { size, margin }) {
  const { at, count } = slots(tree, 0.6);
  const rings = Math.max(1, deepest(tree)), most = size / 2 - margin;
  const isAlone = [...tree.values()].filter((one) => one.depth === 0).length === 1;
  const places = new Map();
  for (const [id, slot] of at) {
    const { depth, children } = tree.get(id);
    const angle = (2 * Math.PI * (slot + 0.5)) / Math.max(1, count + 0.6) - Math.PI / 2;
    const inner = isAlone ? depth / rings : (depth + 0.35) / (rings + 0.35);
    const radius = children.length || (isAlone && depth === 0) ? most * inner : most;
    places.set(id, { x: size / 2 + radius * Math.cos(angle), y: size / 2 + radius * Math.sin(angle), angle, radius });
  }
  return { width: size, height: size, places };
}

/** The stripe whose tree the slowest branch runs along; `path`: names from the origin on. null: there is none. */
export function slowestStripe(nodes, edges, path) {
  const ids = new Map(nodes.map((node) => [node.name, node.id]));
  const hops = (path || []).slice(1).map((name, at) => edges.find((edge) => edge.source === ids.get(path[at]) && edge.target === ids.get(name)));
  if (!hops.length || hops.includes(undefined)) return null;
  return hops[0].stripes.find((stripe) => hops.every((hop) => hop.stripes.includes(stripe))) ?? null;
}

/** A curve between two places of `asRows`; `wide`: of a node. */
export function rowCurve(from, to, wide) {
  const start = from.x + wide, middle = (start + to.x) / 2;
  return `M${start} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`;
}

/** A curve between two places of `asRings` around (centre, centre). */
export function ringCurve(from, to, centre) {
  const half = (from.radius + to.radius) / 2;
  const bend = (angle) => `${(centre + half * Math.cos(angle)).toFixed(1)} ${(centre + half * Math.sin(angle)).toFixed(1)}`;
  const start = from.radius ? from.angle : to.angle;
  return `M${from.x.toFixed(1)} ${from.y.toFixed(1)}C${bend(start)} ${bend(to.angle)} ${to.x.toFixed(1)} ${to.y.toFixed(1)}`;
}

/** Width of a hop's line in pixels: by its rate, in decades. */
export function lineWidth(bytesPerSecond) {
  return bytesPerSecond ? Math.max(1, Math.min(5, 1 + (Math.log10(bytesPerSecond) - 4.5) * 0.9)) : 1;
}
