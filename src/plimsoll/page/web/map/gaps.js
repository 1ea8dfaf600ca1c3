// Finds the gaps of a segment, which serve no request: rounding, and free memory.

/** @import { Device } from "../history/device.js" */
/** @import { Segment } from "../history/segments.js" */
/** @import { PlacedBlocks } from "./placed_blocks.js" */

/**
 * "rounding": bytes that the allocator added to a request. "fragment": free memory that cannot go
 * back to the driver, because its segment is in use. "free": free memory that can go back.
 * @typedef {"rounding" | "fragment" | "free"} GapKind
 */

/**
 * A gap, in bytes from the segment's beginning.
 * @typedef {{ kind: GapKind, begin: number, end: number }} Gap
 */

/** @typedef {{ rounding: number, fragment: number, free: number, fragments: number, largest: number }} Room */

const MiB = 1 << 20;

/** The size of PyTorch's segments for requests up to 1 MiB; their blocks are split at 512 bytes. */
const SMALL_SEGMENT = 2 * MiB;

/** In other segments PyTorch splits off the rest of a block only if it has more bytes than this. */
const LEAST_SPLIT = MiB;

/**
 * Returns the gaps of a segment, in the order of addresses.
 * @param {Device} device
 * @param {Segment} segment
 * @param {PlacedBlocks} placed
 * @returns {Gap[]}
 */
export function gapsOf(device, segment, placed) {
  /** @type {Gap[]} */
  const gaps = [];
  /** The bytes that the previous block takes; 0 before the first block. */
  let before = 0;
  const isInUse = placed.count(segment) > 0;
  let at = 0;
  const pass = (/** @type {number} */ next) => {
    if (next > at) {
      const keepsEnd = before > 0 && isUnsplit(device, segment, before, next - at);
      if (keepsEnd) gaps.push({ kind: "rounding", begin: at, end: next });
      else gaps.push(...freeParts(device, segment, at, next, isInUse));
    }
    at = Math.max(at, next);
  };
  placed.each({ segment, begin: 0, end: segment.size }, (row, begin, end) => {
    pass(begin);
    const { blocks } = placed;
    const taken = blocks.address[row] - segment.address + blocks.taken(row);
    at = Math.max(at, end);
    before = Math.max(blocks.taken(row), 1);
    const roundedEnd = Math.min(taken, segment.size);
    if (roundedEnd > at) {
      gaps.push({ kind: "rounding", begin: at, end: roundedEnd });
      at = roundedEnd;
    }
  });
  pass(segment.size);
  return joined(gaps);
}

/**
 * Returns whether the unused bytes after a block belong to the block, as they were not split off.
 * @param {Device} device
 * @param {Segment} segment
 * @param {number} taken The bytes that the block takes by the allocator's rounding.
 * @param {number} rest The unused bytes after it.
 */
function isUnsplit(device, segment, taken, rest) {
  if (device.allocator === "uncached") return true;
  if (device.allocator !== "native" || segment.isExpandable) return false;
  if (taken >= device.maxSplitSize) return true;
  return segment.size > SMALL_SEGMENT && rest <= LEAST_SPLIT;
}

/**
 * Divides free memory into parts that can go back to the driver and parts that cannot. These can go
 * back: a segment that is wholly free, any free part of PyTorch's expandable segments, and any
 * wholly free piece of the elastic allocator's segments.
 * @param {Device} device
 * @param {Segment} segment
 * @param {number} begin
 * @param {number} end
 * @param {boolean} isInUse Whether a block is held in the segment.
 * @returns {Gap[]}
 */
function freeParts(device, segment, begin, end, isInUse) {
  if (!isInUse || (device.allocator === "native" && segment.isExpandable)) {
    return [{ kind: "free", begin, end }];
  }
  if (device.allocator !== "elastic") return [{ kind: "fragment", begin, end }];
  /** @type {Gap[]} */
  const parts = [];
  let pieceBegin = 0;
  for (const pieceEnd of segment.pieces) {
    const kind = pieceBegin >= begin && pieceEnd <= end ? "free" : "fragment";
    const [from, to] = [Math.max(pieceBegin, begin), Math.min(pieceEnd, end)];
    if (to > from) parts.push({ kind, begin: from, end: to });
    pieceBegin = pieceEnd;
  }
  return parts;
}

/** Returns the gaps, with neighbours of the same kind joined into one. */
function joined(/** @type {Gap[]} */ gaps) {
  /** @type {Gap[]} */
  const found = [];
  for (const gap of gaps) {
    const before = found.at(-1);
    if (before && before.kind === gap.kind && before.end === gap.begin) before.end = gap.end;
    else found.push({ ...gap });
  }
  return found;
}

/**
 * Returns the sums of the gaps of several segments.
 * @param {Gap[][]} all
 * @returns {Room}
 */
export function sumOf(all) {
  const room = { rounding: 0, fragment: 0, free: 0, fragments: 0, largest: 0 };
  for (const { kind, begin, end } of all.flat()) {
    room[kind] += end - begin;
    if (kind !== "fragment") continue;
    room.fragments++;
    room.largest = Math.max(room.largest, end - begin);
  }
  return room;
}
