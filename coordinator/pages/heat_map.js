// Chunks of the newest version by peer: a row for each peer that lacks some, those furthest behind first.
import { html, useEffect, useMemo, useRef, useState } from "/web/vendor/htm-preact.js";
import { count, percent, plural } from "/web/format.js";
import { colour, shade } from "/web/theme.js";
import { useStore } from "/web/store.js";
import { useWidth } from "./tree.js";

const ROWS_PIXELS = 300; // of all rows together, as far as a row has two pixels
const MEAN_PIXELS = 18;

/** "00ff" -> [0, 1]; for "" every cell has the same share. */
export function cellsOf(hex, share, cells) {
  if (!hex) return new Array(cells).fill(share);
  return Array.from({ length: hex.length / 2 }, (_, at) => parseInt(hex.slice(2 * at, 2 * at + 2), 16) / 255);
}

/** Args: peers, heatMap (the mean's): as /api/v1/broadcast gives them. */
export function HeatMap({ peers, heatMap, version }) {
  const canvas = useRef(null), frame = useRef(null);
  const width = useWidth(frame), theme = useStore(shade);
  const [pointed, setPointed] = useState(null);
  const behind = useMemo(() => peers.filter((one) => one.role !== "origin" && one.share_held < 1).sort((one, other) => one.share_held - other.share_held), [peers]);
  const tall = Math.max(2, Math.min(14, Math.floor(ROWS_PIXELS / Math.max(1, behind.length))));
  const height = MEAN_PIXELS + (behind.length ? 6 + behind.length * tall : 0);
  useEffect(() => {
    if (!canvas.current || !width) return;
    draw(canvas.current, { width, height, tall, heatMap, behind });
  }, [behind, heatMap, width, theme]);
  const onMove = (event) => {
    const at = Math.floor((event.offsetY - MEAN_PIXELS - 6) / tall);
    setPointed(behind[at]?.peer_id || null);
  };
  const told = behind.find((one) => one.peer_id === pointed);
  const summary = behind.length ? `${plural(behind.length, "peer")} still ${behind.length === 1 ? "lacks" : "lack"} chunks of version ${version}` : `every peer holds all chunks of version ${version}`;
  return html`<div class="heat" ref=${frame}>
    <p class="tree-told muted">${told ? html`<b>${told.name}</b><span>holds ${percent(told.share_held)}</span>` : html`<span>${summary}</span>`}</p>
    <canvas ref=${canvas} role="img" aria-label=${`Chunk map: ${summary}`} onPointerMove=${onMove} onPointerLeave=${() => setPointed(null)} style=${{ width: "100%", height: `${height}px` }}></canvas>
    <p class="muted small">Top: mean of all peers, first chunk to last. Below: ${behind.length ? `the ${count(behind.length)} that lack chunks, furthest behind first` : "all peers hold all chunks"}.</p>
  </div>`;
}

function draw(canvas, { width, height, tall, heatMap, behind }) {
  const dense = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  const pen = canvas.getContext("2d");
  pen.scale(dense, dense);
  const colours = { full: colour("series-1"), none: colour("idle-soft") };
  const cells = heatMap ? heatMap.length / 2 : 128;
  strip(pen, cellsOf(heatMap, behind.length ? 0 : 1, cells), { top: 0, width, tall: MEAN_PIXELS, colours });
  behind.forEach((one, at) => strip(pen, cellsOf(one.heat_map, one.share_held, cells), { top: MEAN_PIXELS + 6 + at * tall, width, tall: tall - (tall > 4 ? 1 : 0), colours }));
}

function strip(pen, cells, { top, width, tall, colours }) {
  pen.globalAlpha = 1;
  pen.fillStyle = colours.none;
  pen.fillRect(0, top, width, tall);
  pen.fillStyle = colours.full;
  const wide = width / cells.length;
  cells.forEach((share, at) => {
    if (share <= 0) return;
    pen.globalAlpha = 0.15 + 0.85 * share;
    pen.fillRect(at * wide, top, Math.max(1, wide - (wide > 4 ? 0.6 : 0)), tall);
  });
}
