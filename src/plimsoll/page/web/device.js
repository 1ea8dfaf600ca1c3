// One device's history, as far as it is in the page.

import { mostOf, unpackColumn, unpackColumns } from "./columns.js";
import { Pyramid } from "./pyramid.js";
import { firstAbove } from "./search.js";
import { Segments } from "./segments.js";
import { Stacks } from "./stacks.js";

/**
 * A way to put blocks into groups.
 * @typedef {object} Key
 * @property {string} name
 * @property {string} title
 * @property {string[]} groups
 * @property {string} by
 * @property {number[]} table
 * @property {import("./columns.js").PackedColumn[]} bytes
 */

/** @typedef {{ event: number, kind: string, text: string }} Moment */

/** @typedef {import("./columns.js").Column} Column */

export class Device {
  /** @param {any} packed */
  static async load(packed) {
    const { span: _, ...columns } = packed.overview;
    const overview = await unpackColumns(columns);
    const segments = await Segments.load(packed.segments, packed.events);
    const leftOut = packed.left_out && {
      blocks: packed.left_out.blocks,
      ...(await unpackColumns({ low: packed.left_out.low, high: packed.left_out.high })),
    };
    return new Device(packed, overview, segments, leftOut ?? null);
  }

  /**
   * @param {any} packed
   * @param {Record<string, Column>} overview
   * @param {Segments} segments
   * @param {{ blocks: number, low: Column, high: Column } | null} leftOut The blocks that are not
   *   in the page, by span.
   */
  constructor(packed, overview, segments, leftOut) {
    /** @type {number} */
    this.number = packed.device;
    /** @type {number} */
    this.events = packed.events;
    /** @type {number} */
    this.blockCount = packed.blocks;
    /** @type {number} */
    this.durationUs = Math.max(packed.end_us, 1);
    this.origin = BigInt(packed.origin);
    /** @type {string[]} */
    this.streams = packed.streams;
    /** @type {string[]} */
    this.pools = packed.pools;
    /** @type {string[]} */
    this.categories = packed.categories;
    /** @type {string[]} */
    this.notes = packed.notes;
    /** Blocks of this size and more are all in the page. @type {number} */
    this.leastBytes = packed.least_bytes;
    this.leftOut = leftOut;
    /** @type {Moment[]} */
    this.moments = packed.moments.map((/** @type {any} */ [event, kind, text]) => ({
      event,
      kind,
      text,
    }));
    /** @type {Key[]} */
    this.keys = packed.keys;
    this.packedStacks = packed.stacks;
    /** @type {Stacks | null} */
    this.stacks = null;
    /** @type {Map<string, Column[]>} */
    this.bytesByKey = new Map();
    this.segments = segments;

    /** Events in a span of the overview. @type {number} */
    this.span = packed.overview.span;
    this.top = overview.top;
    this.high = overview.high;
    this.low = overview.low;
    this.sharedHigh = overview.shared;
    this.spanTimes = overview.begin_us;
    this.highest = new Pyramid(this.high, 1);
    this.lowest = new Pyramid(this.low, -1);
    /** The most that lay in shared memory at the top of any span. */
    this.sharedPeak = mostOf(this.sharedHigh);
  }

  /** The bytes of each group at the top of each span. */
  async loadKey(/** @type {string} */ name) {
    if (this.bytesByKey.has(name)) return;
    const columns = await Promise.all(this.key(name).bytes.map(unpackColumn));
    this.bytesByKey.set(name, columns);
  }

  async loadStacks() {
    this.stacks = await Stacks.load(this.packedStacks);
  }

  /** The key of a name, or the first one where this device does not have it. */
  key(/** @type {string} */ name) {
    return this.keys.find((key) => key.name === name) ?? this.keys[0];
  }

  /** The event at the top of a span. */
  topEvent(/** @type {number} */ span) {
    return span * this.span + this.top[span];
  }

  peakEvent() {
    return this.topEvent(this.highest.find(0, this.high.length - 1));
  }

  peakBytes() {
    return this.high[this.highest.find(0, this.high.length - 1)];
  }

  /**
   * The time of an event, from the first; within a span of several events, as if they were evenly
   * spread.
   */
  timeOf(/** @type {number} */ event) {
    const span = Math.min(Math.max(Math.floor(event / this.span), 0), this.spanTimes.length - 1);
    const begin = this.spanTimes[span];
    const isLast = span + 1 === this.spanTimes.length;
    const end = isLast ? this.durationUs : this.spanTimes[span + 1];
    const length = isLast ? this.events - span * this.span : this.span;
    if (length === 1) return begin;
    return begin + ((end - begin) * (event - span * this.span)) / length;
  }

  /** The last event at or before a time. */
  eventAt(/** @type {number} */ us) {
    const span = firstAbove(this.spanTimes, us) - 1;
    if (span < 0) return -1;
    const begin = this.spanTimes[span];
    const isLast = span + 1 === this.spanTimes.length;
    const end = isLast ? this.durationUs : this.spanTimes[span + 1];
    const length = isLast ? this.events - span * this.span : this.span;
    const part = end > begin ? Math.floor((length * (us - begin)) / (end - begin)) : length - 1;
    return span * this.span + Math.min(Math.max(part, 0), length - 1);
  }
}

/**
 * The group of each block, from the number that decides.
 * @param {Key} key
 * @param {import("./blocks.js").Blocks} blocks
 */
export function groupsOf(key, blocks) {
  const groups = new Uint8Array(blocks.length);
  if (key.by === "tier") return groups; // by bytes, not by blocks
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
 * Where the bytes of a block lie.
 * @param {import("./blocks.js").Blocks} blocks
 * @param {number} row
 */
export function tierOf(blocks, row) {
  if (blocks.shared[row] === 0) return "dedicated";
  return blocks.shared[row] < blocks.size[row] ? "in both" : "shared";
}

/**
 * What live blocks hold after an event, by group.
 * @param {Key} key
 * @param {import("./blocks.js").Blocks} blocks
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
