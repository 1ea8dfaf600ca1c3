// Call stacks. Each has a source line, which represents the stack in lists and groups.

import { unpackColumns } from "./columns.js";

/** @import { Column, PackedColumn } from "./columns.js" */

/**
 * @typedef {{ file: string, line: number, name: string, isProgram: boolean, isUsers: boolean }} Frame
 */

/**
 * @typedef {"frame_file" | "frame_line" | "frame_function" | "frame_program" | "node_frame" |
 *   "node_parent" | "stack_node" | "stack_line"} StackColumn
 */
/**
 * @typedef {{ strings: string[], lines: string[] } & Record<StackColumn, PackedColumn>} PackedStacks
 */

export class Stacks {
  /** @param {PackedStacks} packed */
  static async load({ strings, lines, ...columns }) {
    return new Stacks(strings, lines, await unpackColumns(columns));
  }

  /**
   * @param {string[]} strings
   * @param {string[]} lines
   * @param {Record<StackColumn, Column>} columns
   */
  constructor(strings, lines, columns) {
    this.strings = strings;
    this.lines = lines;
    this.columns = columns;
    /** @type {Float64Array | null} */
    this.order = null;
  }

  /** @param {number} stack */
  lineIndex(stack) {
    return this.columns.stack_line[stack];
  }

  /** @param {number} stack */
  line(stack) {
    return this.lines[this.lineIndex(stack)];
  }

  /** Returns for each source line its rank in the order of the lines' texts. */
  lineOrder() {
    if (this.order === null) {
      const sorted = this.lines.map((text, i) => ({ text, i }));
      sorted.sort((a, b) => (a.text < b.text ? -1 : 1));
      const order = new Float64Array(sorted.length);
      sorted.forEach(({ i }, rank) => (order[i] = rank));
      this.order = order;
    }
    return this.order;
  }

  /**
   * Returns the frames of a stack, innermost first.
   * @param {number} stack
   * @returns {Frame[]}
   */
  frames(stack) {
    const { stack_node, node_frame, node_parent } = this.columns;
    const frames = [];
    for (let node = stack_node[stack]; node !== 0; node = node_parent[node]) {
      frames.push(this.frame(node_frame[node]));
    }
    return frames;
  }

  /**
   * @param {number} frame
   * @returns {Frame}
   */
  frame(frame) {
    const { frame_file, frame_line, frame_function, frame_program } = this.columns;
    return {
      file: this.strings[frame_file[frame]],
      line: frame_line[frame],
      name: this.strings[frame_function[frame]],
      isProgram: frame_program[frame] > 0,
      isUsers: frame_program[frame] === 2,
    };
  }

  /**
   * Returns for each stack whether its source line, or one of its frames written as
   * "file:number function", passes a test.
   * @param {(text: string) => boolean} test
   * @returns {boolean[]}
   */
  matching(test) {
    const { stack_node, stack_line, node_frame, node_parent, frame_file, frame_line, frame_function } =
      this.columns;
    const lines = this.lines.map(test);
    const frames = Array.from(
      frame_file,
      (file, i) => test(`${this.strings[file]}:${frame_line[i]} ${this.strings[frame_function[i]]}`),
    );
    const nodes = [false];
    for (let i = 1; i < node_frame.length; i++) {
      nodes.push(nodes[node_parent[i]] || frames[node_frame[i]]); // a parent precedes its children
    }
    return Array.from(stack_node, (node, i) => nodes[node] || lines[stack_line[i]]);
  }
}
