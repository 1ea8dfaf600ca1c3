// The blocks of a history as columns, in order of allocation.

import { unpackColumns } from "./columns.js";

/** @import { Column, PackedColumn } from "./columns.js" */

/**
 * @typedef {"address" | "size" | "rounding" | "shared" | "stream" | "stack" | "freed_by" | "pool" |
 *   "category"} Property
 */
/** @typedef {Record<"start" | "life" | "wait" | Property, PackedColumn>} PackedBlocks */
/** @typedef {"start" | "end" | "completed" | Property} BlockColumn */
/** @typedef {Record<BlockColumn, Column>} BlockColumns */

/** The bytes that a block takes are a multiple of this. */
const MULTIPLE = 512;

/** The blocks of a window are found chunk by chunk; a chunk has this many blocks. */
const CHUNK = 4096;

export class Blocks {
  /**
   * @param {BlockColumns} columns
   * @param {number} events The number of the history's events; as the number of an event it means
   *   "never".
   */
  constructor(columns, events) {
    this.events = events;
    this.length = columns.start.length;
    this.start = columns.start;
    this.end = columns.end;
    this.completed = columns.completed;
    this.address = columns.address;
    this.size = columns.size;
    this.rounding = columns.rounding;
    this.shared = columns.shared;
    this.stream = columns.stream;
    this.stack = columns.stack;
    this.pool = columns.pool;
    this.category = columns.category;
    this.columns = columns;
    /** For each chunk, the last event at which a block of it was held. @type {Int32Array | null} */
    this.lastCompleted = null;
  }

  /**
   * @param {PackedBlocks} packed
   * @param {number} events
   */
  static async load(packed, events) {
    const { life, wait, ...columns } = await unpackColumns(packed);
    const length = columns.start.length;
    const end = new Int32Array(length);
    const completed = new Int32Array(length);
    for (let i = 0; i < length; i++) {
      end[i] = life[i] === 0 ? events : columns.start[i] + life[i] - 1;
      completed[i] = wait[i] === 0 ? events : end[i] + wait[i] - 1;
    }
    return new Blocks({ ...columns, end, completed }, events);
  }

  /**
   * Joins consecutive parts of a history's blocks.
   * @param {Blocks[]} parts At least one part.
   */
  static join(parts) {
    const columns = mapColumns(parts[0].columns, (_, name) => {
      const joined = new Float64Array(parts.reduce((sum, part) => sum + part.length, 0));
      let place = 0;
      for (const part of parts) {
        joined.set(part.columns[name], place);
        place += part.length;
      }
      return joined;
    });
    return new Blocks(columns, parts[0].events);
  }

  /** @param {number[]} rows */
  pick(rows) {
    const columns = mapColumns(this.columns, (column) => {
      const { length } = rows;
      const part = column instanceof Int32Array ? new Int32Array(length) : new Float64Array(length);
      for (let i = 0; i < length; i++) part[i] = column[rows[i]];
      return part;
    });
    return new Blocks(columns, this.events);
  }

  /**
   * Returns the blocks that were held at any time after event `begin` and before event `end`.
   * @param {number} begin
   * @param {number} end
   */
  between(begin, end) {
    this.lastCompleted ??= this.chunkEnds();
    const rows = [];
    for (let chunk = 0; chunk < this.lastCompleted.length; chunk++) {
      const first = chunk * CHUNK;
      if (this.start[first] >= end) break;
      if (this.lastCompleted[chunk] <= begin) continue;
      const last = Math.min(first + CHUNK, this.length);
      for (let i = first; i < last; i++) {
        if (this.completed[i] > begin && this.start[i] < end) rows.push(i);
      }
    }
    return this.pick(rows);
  }

  chunkEnds() {
    const ends = new Int32Array(Math.ceil(this.length / CHUNK)).fill(-1);
    for (let i = 0; i < this.length; i++) {
      const chunk = Math.floor(i / CHUNK);
      if (this.completed[i] > ends[chunk]) ends[chunk] = this.completed[i];
    }
    return ends;
  }

  /** Returns whether block `i` was allocated, and not yet freed, after an event. */
  isLive(/** @type {number} */ i, /** @type {number} */ event) {
    return this.start[i] <= event && this.end[i] > event;
  }

  /** Returns the bytes that block `i` takes of its segment, by the allocator's rounding. */
  taken(/** @type {number} */ i) {
    return takenBytes(this.size[i], this.rounding[i]);
  }

  /** Returns an id that is the same in every window and that no other block has. */
  id(/** @type {number} */ i) {
    return `${this.start[i]}@${this.address[i]}`;
  }
}

/**
 * Returns the bytes that a block takes of its segment.
 * @param {number} size The bytes that were requested.
 * @param {number} rounding What the allocator's rule adds beyond the next multiple of `MULTIPLE`.
 */
export function takenBytes(size, rounding) {
  return Math.ceil(size / MULTIPLE) * MULTIPLE + rounding;
}

/**
 * One block's values, independent of the window in which it was found.
 * @typedef {Record<BlockColumn, number>} Picked
 */

/**
 * @param {Blocks} blocks
 * @param {number} row
 * @returns {Picked}
 */
export function pickedFrom(blocks, row) {
  return mapColumns(blocks.columns, (column) => column[row]);
}

/**
 * @template T
 * @param {BlockColumns} columns
 * @param {(column: Column, name: BlockColumn) => T} make
 * @returns {Record<BlockColumn, T>}
 */
function mapColumns(columns, make) {
  const names = /** @type {BlockColumn[]} */ (Object.keys(columns));
  const made = names.map((name) => [name, make(columns[name], name)]);
  return /** @type {Record<BlockColumn, T>} */ (Object.fromEntries(made));
}
