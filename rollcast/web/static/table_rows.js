// The logic of a virtual table, without a screen: order, window, columns that fit, moves of the keyboard.

const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/** Compare two values; unknown ones (null, undefined, NaN, "") come last in both directions. */
export function compared(one, other, down) {
  const lacks = isUnknown(one), otherLacks = isUnknown(other);
  if (lacks || otherLacks) return lacks === otherLacks ? 0 : lacks ? 1 : -1;
  const sign = down ? -1 : 1;
  if (typeof one === "number" && typeof other === "number") return sign * (one - other);
  return sign * words.compare(String(one), String(other));
}

const isUnknown = (value) => value === null || value === undefined || value === "" || Number.isNaN(value);

/**
 * Keys in order. Sorting starts from the order before: ties stay where they were, and an order that hardly changed costs
 * hardly anything.
 */
export function ordered(byKey, before, value, down) {
  const valued = kept(byKey, before).map((key) => ({ key, value: value(byKey.get(key)) }));
  return valued.sort((one, other) => compared(one.value, other.value, down)).map((one) => one.key);
}

/** The previous order, without removed keys and with new keys at the end. */
export function kept(byKey, before) {
  const keys = before.filter((key) => byKey.has(key));
  if (keys.length === byKey.size) return keys;
  const known = new Set(keys);
  for (const key of byKey.keys()) if (!known.has(key)) keys.push(key);
  return keys;
}

/** Rows to draw: from `first` up to, not including, `end`. Lengths in pixels. */
export function windowOf(scrollTop, height, rowHeight, count, beyond = 6) {
  const first = Math.max(0, Math.min(count, Math.floor(scrollTop / rowHeight) - beyond));
  return { first, end: Math.max(first, Math.min(count, Math.ceil((scrollTop + height) / rowHeight) + beyond)) };
}

/**
 * The columns that fit into a width, with their widths in whole pixels. Columns of a high `rank` go first when there is too
 * little room (0: always there); what is left over is shared by `grow`.
 */
export function fitting(columns, width) {
  const shown = [...columns];
  const taken = () => shown.reduce((sum, column) => sum + column.width, 0);
  while (taken() > width) {
    const rank = Math.max(...shown.map((column) => column.rank || 0));
    if (rank === 0) break;
    shown.splice(shown.findLastIndex((column) => (column.rank || 0) === rank), 1);
  }
  const spare = Math.max(0, width - taken());
  const growth = shown.reduce((sum, column) => sum + (column.grow || 0), 0);
  return shown.map((column) => ({ ...column, pixels: Math.floor(column.width + (growth ? (spare * (column.grow || 0)) / growth : 0)) }));
}

/** The row that a key of the keyboard moves to from row `at` (-1: none yet); null for other keys. */
export function moved(key, at, count, page) {
  if (!count) return null;
  const to = {
    ArrowDown: at + 1, ArrowUp: at < 0 ? count - 1 : at - 1, PageDown: Math.max(at, 0) + page, PageUp: Math.max(at, 0) - page,
    Home: 0, End: count - 1,
  }[key];
  return to === undefined ? null : Math.max(0, Math.min(count - 1, to));
}

/** The selection with all rows between two places added. */
export function extended(selected, keys, from, to) {
  const grown = new Set(selected);
  for (let at = Math.min(from, to); at <= Math.max(from, to); at += 1) if (keys[at] !== undefined) grown.add(keys[at]);
  return grown;
}

/** The selection with one key toggled. */
export function toggled(selected, key) {
  const turned = new Set(selected);
  if (!turned.delete(key)) turned.add(key);
  return turned;
}
