// What of a segment no request has: what requests were rounded up by, and what is free.

/** @import { Device } from "../history/device.js" */
/** @import { Segment } from "../history/segments.js" */
/** @import { PlacedBlocks } from "./placed_blocks.js" */

/**
 * "rounding": what the allocator added to a request. "fragment": free, but held by what is live in
 * its segment. "free": it can go back to the driver.
 * @typedef {"rounding" | "fragment" | "free"} GapKind
 */

/** @typedef {{ kind: GapKind, begin: number, end: number }} Gap In bytes from the segment's beginning. */

/** @typedef {{ rounding: number, fragment: number, free: number, fragments: number, largest: number }} Room */

const MiB = 1 << 20;

/** Segments of PyTorch's for requests of up to 1 MiB; they are split at 512 bytes. */
const SMALL_SEGMENT = 2 * MiB;

/** PyTorch splits off what is left of a block in other segments only if it is more than this. */
const LEAST_SPLIT = MiB;

/**
 * The gaps of a segment, by address.
 * @param {Device} device
 * @param {Segment} segment
 * @param {PlacedBlocks} placed
 * @returns {Gap[]}
 */
export function gapsOf(device, segment, placed) {
  /** @type {Gap[]} */
  const gaps = [];
  /** What the block takes that was passed last; 0 before the first. */
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
 * Whether what follows a block is its end, which was not split off.
 * @param {Device} device
 * @param {Segment} segment
 * @param {number} taken What the block takes by the rule for its size.
 * @param {number} rest What follows it.
 */
function isUnsplit(device, segment, taken, rest) {
  if (device.allocator === "uncached") return true;
  if (device.allocator !== "native" || segment.isExpandable) return false;
  if (taken >= device.maxSplitSize) return true;
  return segment.size > SMALL_SEGMENT && rest <= LEAST_SPLIT;
}

/**
 * Free memory, apart by whether it can go back: a segment that is free as a whole can, PyTorch's
 * expandable ones wherever they are free, and pieces of the elastic allocator's that are.
 * @param {Device} device
 * @param {Segment} segment
 * @param {number} begin
 * @param {number} end
 * @param {boolean} isInUse Whether anything is held in the segment.
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

/** Neighbours of one kind as one. */
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
 * What the gaps of several segments come to.
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
