// The spans that a timeline draws: for each column of pixels, the moment with most live memory.

/** @import { Device } from "./device.js" */

/**
 * The figures of each column of the picture.
 * @typedef {object} Spans
 * @property {number} length
 * @property {number} groups
 * @property {Int32Array} event The event of the moment that is shown; -1 if the column has none.
 * @property {Float64Array} high The live bytes at that moment.
 * @property {Float64Array} low The least live bytes within the column.
 * @property {Float64Array} shared The bytes in shared memory at that moment.
 * @property {Float64Array} reserved The most bytes that were reserved within the column.
 * @property {Float64Array} bytes The live bytes at that moment by group: `groups` numbers for each
 *   column.
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
 * Computes spans from the overview.
 * @param {Device} device
 * @param {string} keyName
 * @param {Int32Array} edges Column `c` shows the states after events edges[c] to edges[c + 1]. An
 *   edge before the history is -2; one after it is at most the number of events.
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
