// What the page of all ranks carries.

import { unpackColumn } from "../history/columns.js";

/** @import { PackedColumn } from "../history/columns.js" */

/**
 * @typedef {object} JobRank
 * @property {number} rank
 * @property {string | null} host
 * @property {number} group
 * @property {string | null} page Where its own page is.
 * @property {string} command What makes that page.
 * @property {number} limit Bytes that are as full as can be.
 * @property {number} length Of its recording.
 * @property {ArrayLike<number>} most Bytes live in each span, at most.
 */

/**
 * @typedef {object} Job
 * @property {string} folder
 * @property {string} answer
 * @property {boolean} hasTime Whether lengths are microseconds, and not events.
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
