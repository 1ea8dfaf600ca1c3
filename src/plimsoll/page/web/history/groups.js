// Puts blocks into groups: by category, line, stream, pool, size or tier.

import { firstAbove } from "./binary_search.js";

/** @import { Blocks } from "./blocks.js" */
/** @import { PackedColumn } from "./columns.js" */

/**
 * A way to put blocks into groups; see keys.py.
 * @typedef {object} Key
 * @property {string} name
 * @property {string} title
 * @property {string[]} groups
 * @property {"category" | "line" | "stream" | "pool" | "size" | "tier"} by
 * @property {number[]} table
 * @property {PackedColumn[]} bytes
 */

/**
 * Returns the group of each block.
 * @param {Key} key
 * @param {Blocks} blocks
 */
export function groupsOf(key, blocks) {
  const groups = new Uint8Array(blocks.length);
  if (key.by === "tier") return groups; // tiers group bytes, not blocks
  if (key.by === "size") {
    for (let i = 0; i < groups.length; i++) groups[i] = firstAbove(key.table, blocks.size[i]);
    return groups;
  }
  const by = key.by === "line" ? "stack" : key.by;
  const numbers = blocks.columns[by];
  for (let i = 0; i < groups.length; i++) groups[i] = key.table[numbers[i]];
  return groups;
}

/**
 * Returns the tier that has the bytes of a block, or "in both".
 * @param {Blocks} blocks
 * @param {number} row
 */
export function tierOf(blocks, row) {
  if (blocks.shared[row] === 0) return "dedicated";
  return blocks.shared[row] < blocks.size[row] ? "in both" : "shared";
}

/**
 * Returns the bytes of the blocks that are live after an event, by group.
 * @param {Key} key
 * @param {Blocks} blocks
 * @param {number} event
 */
export function bytesByGroup(key, blocks, event) {
  const groups = groupsOf(key, blocks);
  const bytes = new Float64Array(key.groups.length);
  for (let i = 0; i < blocks.length; i++) {
    if (!blocks.isLive(i, event)) continue;
    if (key.by === "tier") {
      bytes[0] += blocks.size[i] - blocks.shared[i];
      bytes[1] += blocks.shared[i];
    } else bytes[groups[i]] += blocks.size[i];
  }
  return bytes;
}
