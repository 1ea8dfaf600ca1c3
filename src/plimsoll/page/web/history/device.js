// One device's history, without the blocks that the page leaves out.

import { mostOf, unpackColumn, unpackColumns } from "./columns.js";
import { Pyramid } from "./pyramid.js";
import { firstAbove } from "./binary_search.js";
import { Segments } from "./segments.js";
import { Stacks } from "./stacks.js";

/** @import { Column, PackedColumn } from "./columns.js" */
/** @import { Key } from "./groups.js" */
/** @import { PackedSegments } from "./segments.js" */
/** @import { PackedStacks } from "./stacks.js" */

/** @typedef {"oom" | "retry" | "collection" | "empty_cache" | "mark" | "step"} MarkKind */
/** @typedef {{ event: number, kind: MarkKind, text: string, stack: number | null }} Moment */

/** @typedef {"top" | "high" | "low" | "shared" | "begin_us"} OverviewColumn */

/**
 * @typedef {object} PackedDevice
 * @property {number} device
 * @property {string} allocator
 * @property {number | null} max_split_size
 * @property {number} events
 * @property {number} blocks
 * @property {number} end_us
 * @property {string} origin
 * @property {string[]} streams
 * @property {string[]} pools
 * @property {string[]} categories
 * @property {string[]} notes
 * @property {number} least_bytes
 * @property {{ blocks: number, low: PackedColumn, high: PackedColumn } | null} left_out
 * @property {[number, MarkKind, string, number | null][]} moments
 * @property {Key[]} keys
 * @property {PackedStacks} stacks
 * @property {PackedSegments} segments
 * @property {{ span: number } & Record<OverviewColumn, PackedColumn>} overview
 */

export class Device {
  /** @param {PackedDevice} packed */
  static async load(packed) {
    const { span: _, ...columns } = packed.overview;
    const overview = await unpackColumns(columns);
    const segments = await Segments.load(packed.segments, packed.events);
    const leftOut = packed.left_out && {
      blocks: packed.left_out.blocks,
      ...(await unpackColumns({ low: packed.left_out.low, high: packed.left_out.high })),
    };
    return new Device(packed, overview, segments, leftOut);
  }

  /**
   * @param {PackedDevice} packed
   * @param {Record<OverviewColumn, Column>} overview
   * @param {Segments} segments
   * @param {{ blocks: number, low: Column, high: Column } | null} leftOut The number of blocks that
   *   the page leaves out, and the least and the most bytes of them in each span.
   */
  constructor(packed, overview, segments, leftOut) {
    this.number = packed.device;
    this.allocator = packed.allocator;
    /** PyTorch never splits blocks of this many bytes or more. */
    this.maxSplitSize = packed.max_split_size ?? Infinity;
    this.events = packed.events;
    this.blockCount = packed.blocks;
    this.durationUs = Math.max(packed.end_us, 1);
    this.origin = BigInt(packed.origin);
    this.streams = packed.streams;
    this.pools = packed.pools;
    this.categories = packed.categories;
    this.notes = packed.notes;
    /** The page has all blocks of at least this many bytes. */
    this.leastBytes = packed.least_bytes;
    this.leftOut = leftOut;
    /** @type {Moment[]} */
    this.moments = packed.moments.map(([event, kind, text, stack]) => ({
      event,
      kind,
      text,
      stack,
    }));
    this.keys = packed.keys;
    this.packedStacks = packed.stacks;
    /** @type {Stacks | null} */
    this.stacks = null;
    /** @type {Map<string, Column[]>} */
    this.bytesByKey = new Map();
    this.segments = segments;

    /** The number of events in a span of the overview. */
    this.span = packed.overview.span;
    this.top = overview.top;
    this.high = overview.high;
    this.low = overview.low;
    this.sharedHigh = overview.shared;
    this.spanTimes = overview.begin_us;
    this.highest = new Pyramid(this.high, 1);
    this.lowest = new Pyramid(this.low, -1);
    /** The most bytes in shared memory at the `topEvent` of any span. */
    this.sharedPeak = mostOf(this.sharedHigh);
  }

  /** Loads the bytes of a grouping key's groups at the `topEvent` of each span. */
  async loadKey(/** @type {string} */ name) {
    if (this.bytesByKey.has(name)) return;
    const columns = await Promise.all(this.key(name).bytes.map(unpackColumn));
    this.bytesByKey.set(name, columns);
  }

  async loadStacks() {
    this.stacks ??= await Stacks.load(this.packedStacks);
  }

  /** Returns the grouping key with a name; the first key if the device has none of that name. */
  key(/** @type {string} */ name) {
    return this.keys.find((key) => key.name === name) ?? this.keys[0];
  }

  /** Returns the event of a span after which the most bytes were live. */
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
   * Returns the time of an event since the first. In a span of several events, events count as
   * evenly spread.
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

  /** Returns the last event at or before a time. */
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
