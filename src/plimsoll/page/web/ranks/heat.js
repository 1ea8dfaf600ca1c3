// The picture of all ranks: a row for each rank, with a colour for how full its memory is.

import { asPixel, themeColour } from "../elements/colours.js";
import { fitCanvas } from "../elements/dom.js";

/** @import { JobRank } from "./job.js" */

const LEAST_ROW = 2;
const MOST_ROW = 22;
const WANTED_HEIGHT = 640;
const SHADES = 256;

/** Returns the height of the picture of `ranks` ranks, in CSS pixels. */
export function heatHeight(/** @type {number} */ ranks) {
  const row = Math.min(Math.max(Math.floor(WANTED_HEIGHT / ranks), LEAST_ROW), MOST_ROW);
  return row * ranks;
}

/** @param {string} from @param {string} to @param {number} part */
function mixed(from, to, part) {
  const channel = (/** @type {string} */ colour, /** @type {number} */ at) =>
    parseInt(colour.slice(at, at + 2), 16);
  const parts = [1, 3, 5].map((at) => {
    const value = channel(from, at) + (channel(to, at) - channel(from, at)) * part;
    return Math.round(value).toString(16).padStart(2, "0");
  });
  return `#${parts.join("")}`;
}

function shades() {
  const [low, middle, high] = ["heat-low", "heat-middle", "heat-high"].map(themeColour);
  return Uint32Array.from({ length: SHADES }, (_, shade) => {
    const part = (2 * shade) / (SHADES - 1);
    return asPixel(part < 1 ? mixed(low, middle, part) : mixed(middle, high, part - 1));
  });
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {JobRank[]} ranks
 * @param {number} length The length of the longest recording, in microseconds or events.
 * @param {{ rank: number, part: number }} chosen The chosen row, and the place in it from 0 to 1.
 */
export function drawHeat(canvas, ranks, length, chosen) {
  const { context, width, height } = fitCanvas(canvas);
  const across = canvas.width;
  const palette = shades();
  const image = new ImageData(across, ranks.length);
  const pixels = new Uint32Array(image.data.buffer);
  for (const [row, rank] of ranks.entries()) {
    const spans = rank.most.length;
    for (let x = 0; x < across; x++) {
      const span = Math.floor(((x / across) * length * spans) / rank.length);
      if (span >= spans) break;
      const part = Math.min(rank.most[span] / rank.limit, 1);
      pixels[row * across + x] = palette[Math.round(part * (SHADES - 1))];
    }
  }
  const rows = new OffscreenCanvas(across, ranks.length);
  /** @type {OffscreenCanvasRenderingContext2D} */ (rows.getContext("2d")).putImageData(image, 0, 0);
  context.clearRect(0, 0, width, height);
  context.imageSmoothingEnabled = false;
  context.drawImage(rows, 0, 0, width, height);
  const row = height / ranks.length;
  context.strokeStyle = themeColour("text");
  context.lineWidth = 1;
  context.strokeRect(0.5, chosen.rank * row, width - 1, Math.max(row, 3));
  context.beginPath();
  context.moveTo(chosen.part * width, 0);
  context.lineTo(chosen.part * width, height);
  context.stroke();
}
