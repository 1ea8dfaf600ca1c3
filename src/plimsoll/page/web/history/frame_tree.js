// The live bytes by call stack: for each frame the bytes that it requested itself, and those that
// it and all frames called by it requested.

/** @import { Blocks } from "./blocks.js" */
/** @import { Stacks } from "./stacks.js" */

/** @typedef {(row: number) => boolean} Counted */

/**
 * The totals of a frame over all its callers.
 * @typedef {object} FrameTotal
 * @property {number} frame
 * @property {number} bytes The bytes that it and the frames that it called requested; in recursion
 *   they count once.
 * @property {number} own The bytes that it requested itself.
 * @property {number} blocks
 */

export class FrameTree {
  /**
   * @param {Stacks} stacks
   * @param {Blocks} blocks
   * @param {Counted} isCounted Whether a block counts.
   */
  constructor(stacks, blocks, isCounted) {
    const { node_parent, node_frame, stack_node } = stacks.columns;
    this.stacks = stacks;
    this.parent = node_parent;
    this.frame = node_frame;
    /** For each node, the bytes that it and the nodes below it requested; node 0 has the total. */
    this.bytes = new Float64Array(node_parent.length);
    this.own = new Float64Array(node_parent.length);
    this.blocks = new Int32Array(node_parent.length);
    for (let i = 0; i < blocks.length; i++) {
      if (!isCounted(i)) continue;
      const node = stack_node[blocks.stack[i]];
      this.own[node] += blocks.size[i];
      this.blocks[node]++;
    }
    this.bytes.set(this.own);
    // A parent has a lower number than its children, so this loop adds children first.
    for (let node = node_parent.length - 1; node > 0; node--) {
      this.bytes[node_parent[node]] += this.bytes[node];
      this.blocks[node_parent[node]] += this.blocks[node];
    }
    /** The nodes that each node called, the largest first. @type {Map<number, number[]>} */
    this.children = new Map();
    for (let node = 1; node < node_parent.length; node++) {
      if (this.blocks[node] === 0) continue;
      const siblings = this.children.get(node_parent[node]);
      if (siblings) siblings.push(node);
      else this.children.set(node_parent[node], [node]);
    }
    for (const one of this.children.values())
      one.sort((a, b) => this.bytes[b] - this.bytes[a] || a - b);
  }

  /** Returns the nodes that a node called, the largest first. */
  called(/** @type {number} */ node) {
    return this.children.get(node) ?? [];
  }

  /** Returns whether `above` is `node` itself, or called it directly or indirectly. */
  isWithin(/** @type {number} */ node, /** @type {number} */ above) {
    while (node > above) node = this.parent[node];
    return node === above;
  }

  /** Returns whether a node is a recursive call: its frame is also among its callers. */
  isInItself(/** @type {number} */ node) {
    for (let above = this.parent[node]; above !== 0; above = this.parent[above]) {
      if (this.frame[above] === this.frame[node]) return true;
    }
    return false;
  }

  /**
   * Returns the totals of every frame, the largest first.
   * @returns {FrameTotal[]}
   */
  totals() {
    /** @type {Map<number, FrameTotal>} */
    const totals = new Map();
    for (let node = 1; node < this.parent.length; node++) {
      if (this.blocks[node] === 0) continue;
      const frame = this.frame[node];
      const total = totals.get(frame) ?? { frame, bytes: 0, own: 0, blocks: 0 };
      totals.set(frame, total);
      total.own += this.own[node];
      if (this.isInItself(node)) continue;
      total.bytes += this.bytes[node];
      total.blocks += this.blocks[node];
    }
    return [...totals.values()].sort((a, b) => b.bytes - a.bytes || b.own - a.own);
  }
}
