// The segments that were there in each column of a picture, on top of each other, the oldest at the
// bottom.

/** @import { Device } from "../history/device.js" */
/** @import { Segment } from "../history/segments.js" */

/** States that are kept, so that moving the window does not find them again. */
const MOST_KEPT = 8192;

/** What was reserved when, each state found once. */
export class SegmentStates {
  /** @param {Device} device */
  constructor(device) {
    this.device = device;
    /** By step of the reserved level. @type {Map<number, Segment[]>} */
    this.known = new Map();
  }

  /**
   * The segments when the most was reserved in each column, the oldest first; of a column outside of
   * the history, none.
   * @param {Int32Array} edges See `spansFromOverview`.
   * @returns {Segment[][]}
   */
  columns(edges) {
    const { device } = this;
    const columns = [];
    for (let c = 0; c + 1 < edges.length; c++) {
      const isIn = edges[c + 1] >= 0 && edges[c] < device.events;
      columns.push(isIn ? this.at(device.segments.highestStep(edges[c], edges[c + 1])) : []);
    }
    return columns;
  }

  /**
   * @param {number} step
   * @returns {Segment[]}
   */
  at(step) {
    let found = this.known.get(step);
    if (found === undefined) {
      const { segments } = this.device;
      found = segments.presentAt(segments.at[step]);
      found.sort((a, b) => a.start - b.start || a.address - b.address);
      if (this.known.size >= MOST_KEPT) this.known.clear();
      this.known.set(step, found);
    }
    return found;
  }
}

/**
 * The columns as pixels.
 * @param {Segment[][]} columns As many as the picture is wide.
 * @param {ImageData} image
 * @param {number} high The bytes at its top.
 * @param {(segment: Segment) => number} colourOf As a pixel.
 * @param {number} edge The colour between two segments.
 */
export function paintSegments(columns, image, high, colourOf, edge) {
  const { width, height } = image;
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(0);
  const scale = height / high;
  for (let x = 0; x < width; x++) {
    let sum = 0;
    let bottom = height;
    for (const segment of columns[x]) {
      sum += segment.size;
      const top = Math.max(Math.round(height - sum * scale), 0);
      if (top >= bottom) continue;
      const colour = colourOf(segment);
      for (let y = bottom - 1; y >= top; y--) pixels[y * width + x] = colour;
      if (bottom - top > 3) pixels[top * width + x] = edge;
      bottom = top;
    }
  }
}

/**
 * What tells a segment from those before and after it at the same place.
 * @param {Segment} segment
 */
export function segmentId({ start, address }) {
  return `${start}@${address}`;
}

/** The kinds of segments, as they are coloured. */
export const KINDS = {
  small: "of 2 MiB, for requests up to 1 MiB",
  large: "larger",
  expandable: "expandable",
  private: "of private pools",
};

/** Segments that were taken one after the other differ a little. */
export const SHADES = [255, 205];

/**
 * @param {Segment} segment
 * @returns {keyof typeof KINDS}
 */
export function kindOf(segment) {
  if (segment.isPrivate) return "private";
  if (segment.isExpandable) return "expandable";
  return segment.size <= 2 << 20 ? "small" : "large";
}
