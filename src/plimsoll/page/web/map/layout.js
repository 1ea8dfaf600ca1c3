// Computes where the bytes of each segment lie on the map.

import { mostOf } from "../history/columns.js";

/** @import { Segment } from "../history/segments.js" */

/**
 * A stretch of one segment in one row of the map.
 * @typedef {object} Stretch
 * @property {Segment} segment
 * @property {number} index The index of the segment.
 * @property {number} begin The first byte, counted from the segment's beginning.
 * @property {number} end The byte after the last.
 * @property {number} x
 * @property {number} y
 * @property {number} width
 * @property {number} height
 */

/** @typedef {{ stretches: Stretch[], height: number, rowBytes: number | null }} Layout */

/** The layouts, each with the name that the page shows. */
export const LAYOUTS = {
  packed: "one scale, packed",
  rows: "a row each, one scale",
  full: "a row each, full width",
};

const GAP = 3;

/**
 * @param {Segment[]} segments
 * @param {Segment[][]} others The segments of the other maps, which get the same scale.
 * @param {string} kind One of `LAYOUTS`.
 * @param {number} width
 * @param {number} height The height of the visible part; the map may be higher.
 * @returns {Layout}
 */
export function layOut(segments, others, kind, width, height) {
  const all = [segments, ...others].filter(({ length }) => length > 0);
  if (segments.length === 0) return { stretches: [], height: 0, rowBytes: null };
  if (kind === "packed") return packed(segments, all, width, height);
  return inRows(segments, all, kind, width);
}

/** If possible, a segment of median size is at least this many pixels wide. */
const WIDE_ENOUGH = 12;

/**
 * Lays out segments like words on lines, all to one scale. A segment that is longer than a line
 * continues on the next line.
 * @param {Segment[]} segments
 * @param {Segment[][]} all
 * @param {number} width
 * @param {number} height
 */
function packed(segments, all, width, height) {
  const total = Math.max(...all.map((one) => one.reduce((sum, { size }) => sum + size, 0)));
  const middle = Math.min(...all.map(middleSize));
  let rowBytes = total;
  let rowHeight = 0;
  // If lines are lower, more lines fit, and each byte gets more pixels.
  for (rowHeight of [40, 32, 26, 21, 17, 14]) {
    const rows = Math.max(Math.floor((height + GAP) / (rowHeight + GAP)), 1);
    // The slack is room for the gaps between segments and for lines that are not full.
    for (const slack of [1, 1.03, 1.08, 1.15, 1.3, 1.6, 2.2]) {
      rowBytes = Math.ceil((total * slack) / rows);
      if (all.every((one) => flow(one, width, rowBytes, rowHeight).height <= height)) break;
    }
    if ((middle / rowBytes) * width >= WIDE_ENOUGH) break;
  }
  return flow(segments, width, rowBytes, rowHeight);
}

/** @param {Segment[]} segments */
function middleSize(segments) {
  const sizes = segments.map(({ size }) => size).sort((a, b) => a - b);
  return sizes[sizes.length >> 1];
}

/**
 * @param {Segment[]} segments
 * @param {number} width
 * @param {number} rowBytes
 * @param {number} rowHeight
 * @returns {Layout}
 */
function flow(segments, width, rowBytes, rowHeight) {
  /** @type {Stretch[]} */
  const stretches = [];
  const scale = width / rowBytes;
  let x = 0;
  let y = 0;
  segments.forEach((segment, index) => {
    if (x > 0 && x + Math.min(segment.size * scale, width * 0.25) > width) {
      x = 0;
      y += rowHeight + GAP;
    }
    let begin = 0;
    while (begin < segment.size) {
      const bytes = Math.min(segment.size - begin, Math.max((width - x) / scale, 1));
      const end = segment.size - begin - bytes < 1 ? segment.size : begin + bytes;
      const across = (end - begin) * scale;
      stretches.push({ segment, index, begin, end, x, y, width: across, height: rowHeight });
      begin = end;
      x += across;
      if (begin < segment.size) {
        x = 0;
        y += rowHeight + GAP;
      }
    }
    x += 2;
  });
  return { stretches, height: y + rowHeight, rowBytes };
}

/**
 * @param {Segment[]} segments
 * @param {Segment[][]} all
 * @param {string} kind
 * @param {number} width
 * @returns {Layout}
 */
function inRows(segments, all, kind, width) {
  const most = mostOf(all.flatMap((one) => one.map(({ size }) => size)));
  const height = 14;
  const stretches = segments.map((segment, index) => ({
    segment,
    index,
    begin: 0,
    end: segment.size,
    x: 0,
    y: index * (height + GAP),
    width: kind === "full" ? width : Math.max((width * segment.size) / most, 1),
    height,
  }));
  const rowBytes = kind === "full" ? null : most;
  return { stretches, height: segments.length * (height + GAP), rowBytes };
}
