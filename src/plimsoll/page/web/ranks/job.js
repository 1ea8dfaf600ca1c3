// Reads the data in the page of all ranks.

import { unpackColumn } from "../history/columns.js";

/** @import { PackedColumn } from "../history/columns.js" */

/**
 * @typedef {object} JobRank
 * @property {number} rank
 * @property {string | null} host
 * @property {number} group
 * @property {string | null} page The address of the rank's own page; null if there is none.
 * @property {string} command The command that makes that page.
 * @property {number} limit The bytes at which the rank's memory counts as full.
 * @property {number} length The length of its recording.
 * @property {ArrayLike<number>} most The most live bytes in each span.
 */

/**
 * @typedef {object} Job
 * @property {string} folder
 * @property {string} answer
 * @property {boolean} hasTime Whether lengths are in microseconds; otherwise they are in events.
 * @property {{ rank: number, text: string }[]} outliers
 * @property {JobRank[]} ranks
 */

/** @returns {Promise<Job>} */
export async function readJob(/** @type {string} */ text) {
  const packed = JSON.parse(text);
  /** @type {JobRank[]} */
  const ranks = packed.ranks;
  /** @type {PackedColumn} */
  const column = packed.most;
  const most = await unpackColumn(column);
  const spans = most.length / ranks.length;
  return {
    ...packed,
    ranks: ranks.map((one, i) => ({ ...one, most: most.subarray(i * spans, (i + 1) * spans) })),
  };
}
