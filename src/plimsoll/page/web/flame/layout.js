// Computes where each frame of the flame graph lies.

/** @import { FrameTree } from "../history/frame_tree.js" */

/**
 * @typedef {object} Bar
 * @property {number} node
 * @property {number} depth
 * @property {number} x
 * @property {number} width
 */

/** The width in pixels of the narrowest bar that is drawn. */
const LEAST_WIDTH = 0.5;

/**
 * Returns the bars of `focus`, its callers, and the frames that it called. `focus` and its callers
 * are as wide as the graph.
 * @param {FrameTree} tree
 * @param {number} focus
 * @param {number} width
 * @returns {Bar[]}
 */
export function layOutFrames(tree, focus, width) {
  const above = [];
  for (let node = focus; node !== 0; node = tree.parent[node]) above.push(tree.parent[node]);
  above.reverse();
  /** @type {Bar[]} */
  const bars = above.map((node, depth) => ({ node, depth, x: 0, width }));
  const scale = tree.bytes[focus] > 0 ? width / tree.bytes[focus] : 0;
  const waiting = [{ node: focus, depth: above.length, x: 0, width }];
  for (let bar = waiting.pop(); bar !== undefined; bar = waiting.pop()) {
    bars.push(bar);
    let x = bar.x;
    for (const node of tree.called(bar.node)) {
      const across = tree.bytes[node] * scale;
      if (across >= LEAST_WIDTH) waiting.push({ node, depth: bar.depth + 1, x, width: across });
      x += across;
    }
  }
  return bars;
}
