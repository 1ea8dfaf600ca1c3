// The colours of groups. Groups of the same name have the same colour in every run.

/** @import { Key } from "../history/groups.js" */

/**
 * The numbers of the categories' colours, which are the same on every page.
 * @type {Record<string, number>}
 */
const CATEGORIES = {
  parameters: 0,
  "optimizer state": 1,
  gradients: 2,
  inputs: 8,
  workspaces: 3,
  activations: 4,
  "unused activations": 9,
  "recomputed activations": 5,
  "kv cache": 7,
  collectives: 10,
  temporaries: 6,
};

/** The number of colours; the next number is the grey of all other groups. */
const COLOURS = 11;

/**
 * Returns for each device the colour numbers of its groups.
 * @param {Key[]} keys
 * @returns {number[][]}
 */
export function colourNumbers(keys) {
  /** @type {Map<string, number>} */
  const numbers = new Map();
  return keys.map((key) =>
    key.groups.map((group) => {
      if (/^[\d,]+ others$/.test(group) || group === "other") return COLOURS;
      if (key.name === "category") return CATEGORIES[group] ?? COLOURS;
      if (!numbers.has(group)) numbers.set(group, Math.min(numbers.size, COLOURS));
      return /** @type {number} */ (numbers.get(group));
    }),
  );
}

/** @type {Map<string, string>} */
const known = new Map();

/** Drops the colours that were read from the style sheet; call it when the theme has changed. */
export function forgetColours() {
  known.clear();
}

/**
 * Returns a colour of the theme, as CSS writes it.
 * @param {string} name
 */
export function themeColour(name) {
  let colour = known.get(name);
  if (colour === undefined) {
    colour = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    known.set(name, colour);
  }
  return colour;
}

/** @param {number} number */
export function groupColour(number) {
  return themeColour(`group-${number}`);
}

/**
 * Converts "#rrggbb" to a pixel of an ImageData.
 * @param {string} colour
 * @param {number} [alpha]
 */
export function asPixel(colour, alpha = 255) {
  const value = parseInt(colour.slice(1), 16);
  const [red, green, blue] = [value >> 16, (value >> 8) & 255, value & 255];
  return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
