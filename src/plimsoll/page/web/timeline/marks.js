// The marks on a timeline. Each kind has a sign of its own.

/** @import { MarkKind, Moment } from "../history/device.js" */

/** @type {Record<MarkKind, { name: string, sign: string, colour: string }>} */
export const MARKS = {
  oom: { name: "out of memory", sign: "✕", colour: "bad" },
  retry: { name: "retry of a refused request", sign: "▲", colour: "warn" },
  collection: { name: "garbage collection or retry", sign: "◆", colour: "quiet" },
  empty_cache: { name: "empty_cache", sign: "◇", colour: "quiet" },
  mark: { name: "mark", sign: "●", colour: "accent" },
  step: { name: "step", sign: "|", colour: "quiet" },
};

/** The kinds of marks by rank. A crowd of marks shows only the mark whose kind comes first here. */
const RANK = Object.keys(MARKS);

/** @typedef {{ x: number, moments: Moment[] }} Crowd The marks that share one place. */

/**
 * Groups the marks in a window: marks that would cover each other form one crowd.
 * @param {Moment[]} moments The marks in order.
 * @param {(event: number) => number} xOf
 * @param {number} width
 * @param {number} apart The pixels that a mark needs.
 */
export function crowds(moments, xOf, width, apart) {
  /** @type {Crowd[]} */
  const found = [];
  for (const moment of moments) {
    const x = xOf(moment.event);
    if (x < 0 || x > width) continue;
    const last = found.at(-1);
    if (last && x - last.x < apart) last.moments.push(moment);
    else found.push({ x, moments: [moment] });
  }
  return found;
}

/** @param {Moment[]} moments */
export function foremost(moments) {
  return moments.reduce((a, b) => (RANK.indexOf(b.kind) < RANK.indexOf(a.kind) ? b : a));
}
