// Computes the spans of a window from its blocks, event by event.

import { bytesByGroup, groupsOf } from "./groups.js";
import { emptySpans } from "./spans.js";

/** @import { Blocks } from "./blocks.js" */
/** @import { Device } from "./device.js" */
/** @import { Key } from "./groups.js" */

/**
 * The live memory after an event, in bytes.
 * @typedef {object} Live
 * @property {number} event
 * @property {number} total
 * @property {number} shared The part in shared memory.
 * @property {Float64Array} bytes The part of each group.
 */

/** The number of events between two states that `Detail.known` keeps. */
const KNOWN_EVERY = 1 << 14;

/** The blocks held in a window, with the change that each event of the window makes. */
export class Detail {
  /**
   * @param {Device} device
   * @param {Blocks} blocks All blocks that were held in the window.
   * @param {number} begin The window's first event.
   * @param {number} end The event after the window's last.
   * @param {boolean} isComplete Whether `blocks` includes the small ones that the page leaves out.
   */
  constructor(device, blocks, begin, end, isComplete) {
    this.device = device;
    this.blocks = blocks;
    this.begin = begin;
    this.end = end;
    this.leftOut = isComplete ? null : device.leftOut;
    /** For each event: i + 1 if it allocates block i, -i - 1 if it frees block i, else 0. */
    this.changes = new Int32Array(end - begin);
    /** The name of the grouping key for which `groups` and `known` were computed. */
    this.keyName = "";
    this.groups = new Uint8Array(0);
    /** The state after every `KNOWN_EVERY` events, as far as it is computed. @type {Live[]} */
    this.known = [];
    for (let i = 0; i < blocks.length; i++) {
      if (blocks.start[i] > begin && blocks.start[i] < end) {
        this.changes[blocks.start[i] - begin] = i + 1;
      }
      if (blocks.end[i] > begin && blocks.end[i] < end) this.changes[blocks.end[i] - begin] = -i - 1;
    }
  }

  /** Returns whether the window includes all events of columns with these edges. */
  covers(/** @type {Int32Array} */ edges) {
    const first = Math.max(edges[0], 0);
    const last = Math.min(edges[edges.length - 1], this.device.events - 1);
    return first >= this.begin && last < this.end;
  }

  /** @param {Key} key */
  useKey(key) {
    const { blocks, begin } = this;
    this.keyName = key.name;
    this.groups = groupsOf(key, blocks);
    const bytes = bytesByGroup(key, blocks, begin);
    const total = bytes.reduce((a, b) => a + b, 0);
    let shared = 0;
    for (let i = 0; i < blocks.length; i++) if (blocks.isLive(i, begin)) shared += blocks.shared[i];
    this.known = [{ event: begin, total, shared, bytes }];
  }

  /**
   * Returns spans like `spansFromOverview`. If small blocks are known only as sums, they form one
   * more group, the last.
   * @param {string} keyName
   * @param {Int32Array} edges
   */
  spans(keyName, edges) {
    const { device, blocks, begin, changes, leftOut } = this;
    const key = device.key(keyName);
    const ownGroups = key.groups.length;
    const spans = emptySpans(edges.length - 1, ownGroups + (leftOut ? 1 : 0));
    if (this.keyName !== key.name) this.useKey(key);
    const { groups } = this;
    const isByTier = key.by === "tier";
    const place = Math.floor((Math.max(edges[0], 0) - begin) / KNOWN_EVERY);
    const start = this.known[Math.min(place, this.known.length - 1)];
    let { event, total, shared } = start;
    const now = start.bytes.slice();

    const pass = () => {
      event++;
      const change = changes[event - begin];
      if (change !== 0) {
        const block = Math.abs(change) - 1;
        const sign = change > 0 ? 1 : -1;
        const size = sign * blocks.size[block];
        const spilled = sign * blocks.shared[block];
        total += size;
        shared += spilled;
        if (isByTier) {
          now[0] += size - spilled;
          now[1] += spilled;
        } else now[groups[block]] += size;
      }
      if (event - begin === this.known.length * KNOWN_EVERY) {
        this.known.push({ event, total, shared, bytes: now.slice() });
      }
    };

    for (let c = 0; c < spans.length; c++) {
      if (edges[c + 1] < 0 || edges[c] >= device.events) continue;
      const first = Math.max(edges[c], 0);
      const last = Math.min(edges[c + 1], device.events - 1);
      while (event < first) pass();
      spans.low[c] = Infinity;
      spans.high[c] = -1;
      for (;;) {
        const span = leftOut ? Math.floor(event / device.span) : 0;
        const high = total + (leftOut ? leftOut.high[span] : 0);
        const low = total + (leftOut ? leftOut.low[span] : 0);
        if (low < spans.low[c]) spans.low[c] = low;
        if (high > spans.high[c]) {
          spans.high[c] = high;
          spans.event[c] = event;
          spans.shared[c] = shared;
          spans.bytes.set(now, c * spans.groups);
          if (leftOut) spans.bytes[c * spans.groups + ownGroups] = leftOut.high[span];
        }
        if (event >= last) break;
        pass();
      }
      spans.reserved[c] = device.segments.mostReserved(edges[c], edges[c + 1]);
    }
    return spans;
  }
}
