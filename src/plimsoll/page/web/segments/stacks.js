// The segments in each column of a picture, on top of each other, with the oldest at the bottom.

/** @import { Device } from "../history/device.js" */
/** @import { Segment } from "../history/segments.js" */

/** The most states that are kept, so that they are not computed again when the window moves. */
const MOST_KEPT = 8192;

/** The segments after each change of the reserved bytes; each state is computed once and kept. */
export class SegmentStates {
  /** @param {Device} device */
  constructor(device) {
    this.device = device;
    /** The states by their index in `Segments.at`. @type {Map<number, Segment[]>} */
    this.known = new Map();
  }

  /**
   * Returns for each column the segments at the moment with the most reserved memory, oldest first;
   * none for a column outside of the history.
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
 * Draws the columns into an image.
 * @param {Segment[][]} columns The segments in each column of the image.
 * @param {ImageData} image
 * @param {number} high The bytes at the top of the image.
 * @param {(segment: Segment) => number} colourOf Returns a segment's colour, as a pixel.
 * @param {number} edge The colour of the line between two segments, as a pixel.
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
 * Returns an id that differs from those of earlier and later segments at the same address.
 * @param {Segment} segment
 */
export function segmentId({ start, address }) {
  return `${start}@${address}`;
}

/** The kinds of segments, each of which has a colour. */
export const KINDS = {
  small: "of 2 MiB, for requests up to 1 MiB",
  large: "larger",
  expandable: "expandable",
  private: "of private pools",
};

/** The opacities of segments. They alternate, so that neighbours differ a little. */
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
