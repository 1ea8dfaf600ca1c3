// What is held at a moment of a run, in all and by group.

import { bytesByGroup, groupsOf } from "./groups.js";

/** @import { Key } from "./groups.js" */
/** @import { Run } from "./run.js" */

/**
 * What is held at a moment.
 * @typedef {object} Summary
 * @property {number} live Bytes.
 * @property {number} reserved
 * @property {number} shared
 * @property {number} waiting Bytes that are freed, but other streams may still use them.
 * @property {number[]} bytes What is live, by group; of blocks that are not in the page, at last.
 * @property {Uint8Array} groups The group of each block.
 * @property {boolean} isAtMost Whether there may be less than that.
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
 * While the blocks are on their way: the peak, which the page opens at, is in the overview.
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
