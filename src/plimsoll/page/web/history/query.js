// Parses the text of a search: words, sizes and addresses, joined by "and" (which may be left out),
// "or", "not" and parentheses.

/** @import { Blocks } from "./blocks.js" */
/** @import { Device } from "./device.js" */

/** @typedef {(blocks: Blocks, row: number) => boolean} Test */

/**
 * @typedef {object} Query
 * @property {Test | null} test Null if the text is empty or wrong.
 * @property {string} problem What is wrong with the text; empty if nothing is.
 */

/** @typedef {{ kind: "(" | ")" | "and" | "or" | "not" | "test", test: Test | null }} Token */

const COMPARED = /^(<=|>=|<|>|=)\s*(\d[\d,]*(?:\.\d+)?)\s*([kmgt]i?b?|b|bytes?)?(?=[\s()]|$)/i;
const BARE = /^()(\d[\d,]*(?:\.\d+)?)\s*([kmgt]i?b|b|bytes?)(?=[\s()]|$)/i;
const QUOTED = /^"([^"]*)"/;
const WORD = /^[^\s()]+/;
const POWERS = { b: 0, k: 1, m: 2, g: 3, t: 4 };

/**
 * @param {string} text
 * @param {Device} device
 * @returns {Query}
 */
export function parseQuery(text, device) {
  try {
    const tokens = tokensOf(text, device);
    if (tokens.length === 0) return { test: null, problem: "" };
    const test = either(tokens);
    if (tokens.length > 0) throw new Error("nothing opens the )");
    return { test, problem: "" };
  } catch (error) {
    return { test: null, problem: /** @type {Error} */ (error).message };
  }
}

/**
 * @param {string} text
 * @param {Device} device
 */
function tokensOf(text, device) {
  /** @type {Token[]} */
  const tokens = [];
  let rest = text.trimStart();
  const take = (
    /** @type {RegExpExecArray} */ match,
    /** @type {Token["kind"]} */ kind,
    test = /** @type {Test | null} */ (null),
  ) => {
    tokens.push({ kind, test });
    rest = rest.slice(match[0].length).trimStart();
  };
  while (rest !== "") {
    const size = COMPARED.exec(rest) ?? BARE.exec(rest);
    const quoted = QUOTED.exec(rest);
    const sign = /^[()]/.exec(rest);
    const word = WORD.exec(rest);
    if (size) take(size, "test", sizeTest(size));
    else if (quoted) take(quoted, "test", wordTest(quoted[1], device));
    else if (rest.startsWith('"')) throw new Error('the " is never closed');
    else if (sign) take(sign, /** @type {"(" | ")"} */ (sign[0]));
    else if (word) {
      const kind = word[0].toLowerCase();
      if (kind === "and" || kind === "or" || kind === "not") take(word, kind);
      else take(word, "test", addressTest(word[0], device) ?? wordTest(word[0], device));
    }
  }
  return tokens;
}

/**
 * Parses tests joined by "or"; removes the tokens that it has read.
 * @param {Token[]} tokens
 * @returns {Test}
 */
function either(tokens) {
  const tests = [all(tokens, "or")];
  while (tokens[0]?.kind === "or") {
    tokens.shift();
    tests.push(all(tokens, "or"));
  }
  return tests.length === 1 ? tests[0] : (blocks, row) => tests.some((test) => test(blocks, row));
}

/**
 * Parses tests that must all hold, joined by "and" or by nothing.
 * @param {Token[]} tokens
 * @param {string} around The word that needs tests beside it; an error message names it.
 * @returns {Test}
 */
function all(tokens, around) {
  const tests = [one(tokens, around)];
  for (;;) {
    const next = tokens[0]?.kind;
    if (next === undefined || next === "or" || next === ")") break;
    if (next === "and") tokens.shift();
    tests.push(one(tokens, next === "and" ? "and" : around));
  }
  return tests.length === 1 ? tests[0] : (blocks, row) => tests.every((test) => test(blocks, row));
}

/**
 * @param {Token[]} tokens
 * @param {string} around
 * @returns {Test}
 */
function one(tokens, around) {
  const token = tokens.shift();
  if (token?.test) return token.test;
  if (token?.kind === "not") {
    const test = one(tokens, "not");
    return (blocks, row) => !test(blocks, row);
  }
  if (token?.kind === "(") {
    const test = either(tokens);
    if (tokens.shift()?.kind !== ")") throw new Error("the ( is never closed");
    return test;
  }
  if (around === "not") throw new Error("something must follow not");
  throw new Error(
    token?.kind === ")"
      ? "something must stand before the )"
      : `something must stand on both sides of ${token?.kind ?? around}`,
  );
}

/**
 * Returns the test of a size, such as "> 10 MiB", "<=512", "=1.5G" or "2 MiB". Units are powers of
 * 1024.
 * @param {RegExpExecArray} match
 * @returns {Test}
 */
function sizeTest([, sign, number, unit]) {
  const power = POWERS[/** @type {keyof typeof POWERS} */ ((unit ?? "b")[0].toLowerCase())];
  const bytes = Number(number.replaceAll(",", "")) * 1024 ** power;
  // "=1.54GiB" finds all sizes that the page shows as 1.54 GiB.
  const digits = number.split(".")[1]?.length ?? 0;
  const slack = power === 0 ? 0 : (0.5 * 1024 ** power) / 10 ** digits;
  switch (sign) {
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
 * Returns a test for blocks that contain an address, or whose address begins with these digits.
 * Returns null if the word is no address.
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
 * Returns a test for blocks with a word in their category, or in the call stack of the allocation.
 * @param {string} word
 * @param {Device} device
 * @returns {Test}
 */
function wordTest(word, device) {
  const sought = word.toLowerCase();
  const has = (/** @type {string} */ text) => text.toLowerCase().includes(sought);
  const categories = device.categories.map((name) => has(name.replace("_", " ")) || has(name));
  const stacks = device.stacks?.matching(has) ?? [];
  return (blocks, row) => categories[blocks.category[row]] || stacks[blocks.stack[row]];
}
