// What a timeline draws: for each of its columns the moment at which the most was live in it.

/** @import { Device } from "./device.js" */

/**
 * One entry a column of the picture.
 * @typedef {object} Spans
 * @property {number} length
 * @property {number} groups
 * @property {Int32Array} event The moment that is shown; -1 where the column has none.
 * @property {Float64Array} high What was live then.
 * @property {Float64Array} low The least that was live within the column.
 * @property {Float64Array} shared
 * @property {Float64Array} reserved The most that was reserved within the column.
 * @property {Float64Array} bytes What was live then by group, `groups` numbers a column.
 */

/**
 * @param {number} length
 * @param {number} groups
 * @returns {Spans}
 */
export function emptySpans(length, groups) {
  return {
    length,
    groups,
    event: new Int32Array(length).fill(-1),
    high: new Float64Array(length),
    low: new Float64Array(length),
    shared: new Float64Array(length),
    reserved: new Float64Array(length),
    bytes: new Float64Array(length * groups),
  };
}

/**
 * From the overview.
 * @param {Device} device
 * @param {string} keyName
 * @param {Int32Array} edges Column `c` is of the states after events edges[c] to edges[c + 1]; -2
 *   before the history, and its last event again after it.
 */
export function spansFromOverview(device, keyName, edges) {
  const columns = device.bytesByKey.get(device.key(keyName).name) ?? [];
  const spans = emptySpans(edges.length - 1, columns.length);
  for (let c = 0; c < spans.length; c++) {
    if (edges[c + 1] < 0 || edges[c] >= device.events) continue;
    const first = Math.floor(Math.max(edges[c], 0) / device.span);
    const last = Math.floor(Math.min(edges[c + 1], device.events - 1) / device.span);
    const best = device.highest.find(first, last);
    spans.event[c] = device.topEvent(best);
    spans.high[c] = device.high[best];
    spans.low[c] = device.low[device.lowest.find(first, last)];
    spans.shared[c] = device.sharedHigh[best];
    spans.reserved[c] = device.segments.mostReserved(edges[c], edges[c + 1]);
    for (let g = 0; g < columns.length; g++) spans.bytes[c * columns.length + g] = columns[g][best];
  }
  return spans;
}
