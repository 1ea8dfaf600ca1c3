// Reserved memory: the segments at a moment, and the total of reserved bytes after each event.

import { mostOf, unpackColumns } from "./columns.js";
import { firstAbove } from "./binary_search.js";

/** @import { Column, PackedColumn } from "./columns.js" */

/**
 * A range of reserved memory: one segment, or adjacent pieces of an expandable segment.
 * @typedef {object} Segment
 * @property {number} address The address, relative to the device's origin.
 * @property {number} size
 * @property {number} shared
 * @property {number} stream
 * @property {boolean} isPrivate
 * @property {boolean} isExpandable
 * @property {number} row Its index among all segments of the history, in order of allocation.
 * @property {number} start The event that allocated its oldest piece.
 * @property {number[]} pieces The end of each piece, in bytes from the segment's beginning.
 */

/**
 * @typedef {"start" | "address" | "size" | "shared" | "stream" | "private" | "expandable"} Property
 */
/** @typedef {Record<Property | "life", PackedColumn>} PackedSegments */

export class Segments {
  /**
   * @param {PackedSegments} packed
   * @param {number} events
   */
  static async load(packed, events) {
    const { life, ...columns } = await unpackColumns(packed);
    const end = life.map((one, i) => (one === 0 ? events : columns.start[i] + one - 1));
    return new Segments({ ...columns, end }, events);
  }

  /**
   * @param {Record<Property | "end", Column>} columns
   * @param {number} events
   */
  constructor(columns, events) {
    this.columns = columns;
    /** @type {Map<number, number>} */
    const changes = new Map([[-1, 0]]);
    const { start, end, size } = columns;
    for (let i = 0; i < start.length; i++) {
      changes.set(start[i], (changes.get(start[i]) ?? 0) + size[i]);
      if (end[i] < events) changes.set(end[i], (changes.get(end[i]) ?? 0) - size[i]);
    }
    /** The events that change the reserved bytes; `bytes` has the reserved bytes after each. */
    this.at = Float64Array.from(changes.keys()).sort();
    let level = 0;
    this.bytes = this.at.map((event) => (level += changes.get(event) ?? 0));
    this.most = mostOf(this.bytes);
  }

  /** Returns the bytes reserved after an event. */
  reserved(/** @type {number} */ event) {
    return this.bytes[firstAbove(this.at, event) - 1];
  }

  /** Returns the most bytes that were reserved after any event from `first` to `last`. */
  mostReserved(/** @type {number} */ first, /** @type {number} */ last) {
    return this.bytes[this.highestStep(first, last)];
  }

  /** Returns the index in `bytes` of the most bytes reserved from event `first` to `last`. */
  highestStep(/** @type {number} */ first, /** @type {number} */ last) {
    let best = Math.max(firstAbove(this.at, first) - 1, 0);
    for (let step = best + 1; step < this.at.length && this.at[step] <= last; step++) {
      if (this.bytes[step] > this.bytes[best]) best = step;
    }
    return best;
  }

  /**
   * Returns the segments after an event, in the order of addresses.
   * @param {number} event
   * @returns {Segment[]}
   */
  presentAt(event) {
    const { start, end, address, size, shared, stream, expandable } = this.columns;
    const isPrivate = this.columns.private;
    const rows = [];
    for (let i = 0; i < start.length; i++) {
      if (start[i] <= event && end[i] > event) rows.push(i);
    }
    rows.sort((a, b) => address[a] - address[b]);
    /** @type {Segment[]} */
    const found = [];
    for (const i of rows) {
      const before = found.at(-1);
      const joins =
        before !== undefined &&
        before.address + before.size === address[i] &&
        before.stream === stream[i] &&
        before.isPrivate === (isPrivate[i] === 1) &&
        expandable[i] === 1;
      if (joins) {
        before.size += size[i];
        before.shared += shared[i];
        before.start = Math.min(before.start, start[i]);
        before.row = Math.min(before.row, i);
        before.pieces.push(before.size);
      } else {
        found.push({
          row: i,
          address: address[i],
          size: size[i],
          shared: shared[i],
          stream: stream[i],
          isPrivate: isPrivate[i] === 1,
          isExpandable: expandable[i] === 1,
          start: start[i],
          pieces: [size[i]],
        });
      }
    }
    return found;
  }
}
