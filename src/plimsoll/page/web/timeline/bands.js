// Draws spans as pixels: a column of the picture is one moment, with a band for each group.

/** @import { Spans } from "../history/spans.js" */

/**
 * @typedef {object} Paints
 * @property {Uint32Array} groups The colour of each group, as pixels.
 * @property {number} low The bytes at the bottom of the picture.
 * @property {number} high The bytes at the top of the picture.
 * @property {number} hatched The group that is hatched; -1 for none.
 * @property {number} hatch The colour of the hatching.
 */

/**
 * @param {Spans} spans One for each column of the picture.
 * @param {ImageData} image
 * @param {Paints} paints
 */
export function paintSpans(spans, image, paints) {
  const { width, height } = image;
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(0);
  const scale = height / (paints.high - paints.low);
  for (let x = 0; x < width; x++) {
    if (spans.event[x] < 0) continue;
    let sum = 0;
    let bottom = height;
    for (let g = 0; g < spans.groups; g++) {
      sum += spans.bytes[x * spans.groups + g];
      const top = Math.max(Math.round(height - (sum - paints.low) * scale), 0);
      if (top >= bottom) continue;
      const colour = paints.groups[g];
      const isHatched = g === paints.hatched;
      for (let y = bottom - 1; y >= top; y--) {
        pixels[y * width + x] = isHatched && (x + y) % 6 < 2 ? paints.hatch : colour;
      }
      bottom = top;
    }
  }
}

/**
 * Returns a place for the name of each group whose band is thick enough. It is the middle of the
 * longest run of columns in which the band covers the same `height` pixels.
 * @param {Spans} spans
 * @param {(bytes: number) => number} yOf
 * @param {number} height
 * @returns {{ group: number, from: number, to: number, y: number }[]}
 */
export function placesForNames(spans, yOf, height) {
  const places = [];
  const below = new Float64Array(spans.length);
  for (let group = 0; group < spans.groups; group++) {
    let best = { from: 0, to: 0, y: 0 };
    let from = 0;
    let ceiling = -Infinity;
    let floor = Infinity;
    for (let c = 0; c <= spans.length; c++) {
      let top = 0;
      let bottom = 0;
      if (c < spans.length) {
        bottom = yOf(below[c]);
        below[c] += spans.bytes[c * spans.groups + group];
        top = yOf(below[c]);
      }
      const [higher, lower] = [Math.max(ceiling, top), Math.min(floor, bottom)];
      if (c < spans.length && spans.event[c] >= 0 && lower - higher >= height) {
        [ceiling, floor] = [higher, lower];
        continue;
      }
      if (c - from > best.to - best.from) best = { from, to: c, y: (ceiling + floor) / 2 };
      const starts = c < spans.length && spans.event[c] >= 0 && bottom - top >= height;
      from = starts ? c : c + 1;
      [ceiling, floor] = starts ? [top, bottom] : [-Infinity, Infinity];
    }
    if (best.to > best.from) places.push({ group, ...best });
  }
  return places;
}
