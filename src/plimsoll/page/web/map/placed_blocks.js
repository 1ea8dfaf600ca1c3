// The blocks that are held at a moment, in the order of their addresses.

import { firstAbove } from "../history/binary_search.js";

/** @import { Blocks } from "../history/blocks.js" */
/** @import { Segment } from "../history/segments.js" */
/** @import { Stretch } from "./layout.js" */

/** A part of a segment. @typedef {Pick<Stretch, "segment" | "begin" | "end">} Part */

/**
 * A place on the map.
 * @typedef {object} Place
 * @property {Stretch} stretch
 * @property {number} row The row of the block at this place; -1 for none.
 * @property {number} byte The byte of the segment.
 */

export class PlacedBlocks {
  /** @param {Blocks} blocks */
  constructor(blocks) {
    this.blocks = blocks;
    /** The rows of `blocks`, in the order of the blocks' addresses. */
    this.order = Array.from({ length: blocks.length }, (_, i) => i);
    this.order.sort((a, b) => blocks.address[a] - blocks.address[b]);
    this.addresses = this.order.map((i) => blocks.address[i]);
  }

  /** Returns the row of the block with an id; -1 if there is none. */
  rowOf(/** @type {string | null} */ id) {
    const { blocks } = this;
    if (id === null) return -1;
    for (let i = 0; i < blocks.length; i++) if (blocks.id(i) === id) return i;
    return -1;
  }

  /**
   * Visits the blocks in a stretch, each with the bytes of the segment that it takes there.
   * @param {Part} stretch
   * @param {(row: number, begin: number, end: number) => void} visit
   */
  each(stretch, visit) {
    const { blocks, order, addresses } = this;
    const base = stretch.segment.address;
    let place = Math.max(firstAbove(addresses, base + stretch.begin) - 1, 0);
    for (; place < order.length; place++) {
      const row = order[place];
      const begin = Math.max(blocks.address[row] - base, stretch.begin);
      const end = Math.min(blocks.address[row] - base + blocks.size[row], stretch.end);
      if (blocks.address[row] - base >= stretch.end) break;
      if (end > begin) visit(row, begin, end);
    }
  }

  /**
   * Returns the place at a pixel of the map; null outside of all segments.
   * @param {Stretch[]} stretches
   * @param {number} x
   * @param {number} y
   * @returns {Place | null}
   */
  at(stretches, x, y) {
    for (const stretch of stretches) {
      const isIn =
        x >= stretch.x && x < stretch.x + Math.max(stretch.width, 1) &&
        y >= stretch.y && y < stretch.y + stretch.height;
      if (!isIn) continue;
      const scale = stretch.width / (stretch.end - stretch.begin);
      const byte = stretch.begin + (x - stretch.x) / scale;
      let row = -1;
      let distance = 2 / scale;
      this.each(stretch, (i, begin, end) => {
        const away = byte < begin ? begin - byte : byte > end ? byte - end : 0;
        if (away < distance || away === 0) [row, distance] = [i, away];
      });
      return { stretch, row, byte };
    }
    return null;
  }

  /** Returns how many blocks lie wholly or partly in a segment. */
  count(/** @type {Segment} */ segment) {
    let count = 0;
    this.each({ segment, begin: 0, end: segment.size }, () => count++);
    return count;
  }
}
