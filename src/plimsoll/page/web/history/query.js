// What is searched for: words, sizes and addresses, all of which must hold.

/** @import { Blocks } from "./blocks.js" */
/** @import { Device } from "./device.js" */

/** @typedef {(blocks: Blocks, row: number) => boolean} Test */

const SIZE = /^(<=|>=|<|>|=)(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$/i;
const POWERS = { "": 0, k: 1, m: 2, g: 3, t: 4 };

/**
 * A test for blocks, or null where nothing is searched for.
 * @param {string} text
 * @param {Device} device
 * @returns {Test | null}
 */
export function parseQuery(text, device) {
  const words = text.trim().split(/\s+/).filter(Boolean);
  if (words.length === 0) return null;
  const tests = words.map((word) => sizeTest(word) ?? addressTest(word, device) ?? wordTest(word, device));
  return (blocks, row) => tests.every((test) => test(blocks, row));
}

/**
 * ">10MiB", "<=512", "=1.5G": units are powers of 1024.
 * @param {string} word
 * @returns {Test | null}
 */
function sizeTest(word) {
  const match = SIZE.exec(word);
  if (match === null) return null;
  const power = POWERS[/** @type {keyof typeof POWERS} */ (match[3].toLowerCase())];
  const bytes = Number(match[2]) * 1024 ** power;
  // "=1.54GiB" is what the page shows as 1.54 GiB.
  const digits = match[2].split(".")[1]?.length ?? 0;
  const slack = power === 0 ? 0 : (0.5 * 1024 ** power) / 10 ** digits;
  switch (match[1]) {
    case "<":
      return (blocks, row) => blocks.size[row] < bytes;
    case "<=":
      return (blocks, row) => blocks.size[row] <= bytes;
    case ">":
      return (blocks, row) => blocks.size[row] > bytes;
    case ">=":
      return (blocks, row) => blocks.size[row] >= bytes;
    default:
      return (blocks, row) => Math.abs(blocks.size[row] - bytes) <= slack;
  }
}

/**
 * The block that an address lies in, or addresses that begin like this.
 * @param {string} word
 * @param {Device} device
 * @returns {Test | null}
 */
function addressTest(word, device) {
  if (!/^0x[\da-f]+$/i.test(word)) return null;
  const prefix = word.toLowerCase();
  const offset = Number(BigInt(word) - device.origin);
  return (blocks, row) => {
    const begin = blocks.address[row];
    if (offset >= begin && offset < begin + blocks.size[row]) return true;
    return `0x${(device.origin + BigInt(begin)).toString(16)}`.startsWith(prefix);
  };
}

/**
 * In the stack, the category, the stream or the pool.
 * @param {string} word
 * @param {Device} device
 * @returns {Test}
 */
function wordTest(word, device) {
  const sought = word.toLowerCase();
  const has = (/** @type {string} */ text) => text.toLowerCase().includes(sought);
  const categories = device.categories.map(has);
  const stacks = device.stacks?.matching(has) ?? [];
  return (blocks, row) => categories[blocks.category[row]] || stacks[blocks.stack[row]];
}
