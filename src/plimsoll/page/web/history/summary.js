// Sums up the memory at a moment of a run, in total and by group.

import { bytesByGroup, groupsOf } from "./groups.js";

/** @import { Key } from "./groups.js" */
/** @import { Run } from "./run.js" */

/**
 * The memory at a moment, in bytes.
 * @typedef {object} Summary
 * @property {number} live
 * @property {number} reserved
 * @property {number} shared
 * @property {number} waiting Bytes that were freed, but that other streams may still use.
 * @property {number[]} bytes The live bytes of each group; those of blocks that are not in the page
 *   come last.
 * @property {Uint8Array} groups The group of each held block.
 * @property {boolean} isAtMost Whether `live` is an upper bound, because some blocks are not in the
 *   page.
 */

/**
 * @param {Run} run
 * @param {Key} key
 * @returns {Summary}
 */
export function summarize(run, key) {
  const { device, held, moment } = run;
  const reserved = device.segments.reserved(moment);
  if (held === null) return fromOverview(run, key, reserved);
  const bytes = bytesByGroup(key, held, moment);
  let [shared, waiting] = [0, 0];
  for (let i = 0; i < held.length; i++) {
    if (held.isLive(i, moment)) shared += held.shared[i];
    else waiting += held.size[i];
  }
  const all = Array.from(bytes);
  const isAtMost = device.leftOut !== null && !run.source.isServed;
  if (isAtMost) all.push(device.leftOut?.high[Math.floor(moment / device.span)] ?? 0);
  const live = all.reduce((a, b) => a + b, 0);
  const groups = groupsOf(key, held);
  return { live, reserved, shared, waiting, bytes: all, groups, isAtMost };
}

/**
 * Sums up a moment whose blocks are not loaded yet. The page opens at the peak, and the overview
 * has the peak's figures.
 * @param {Run} run
 * @param {Key} key
 * @param {number} reserved
 * @returns {Summary}
 */
function fromOverview({ device, moment }, key, reserved) {
  const span = Math.floor(moment / device.span);
  const bytes = (device.bytesByKey.get(key.name) ?? []).map((column) => column[span]);
  const shared = device.sharedHigh[span];
  const groups = new Uint8Array(0);
  const live = device.high[span];
  return { live, reserved, shared, waiting: 0, bytes, groups, isAtMost: false };
}
