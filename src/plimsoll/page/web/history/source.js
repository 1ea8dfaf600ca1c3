// Where the blocks of a window come from: the page itself, or the server behind it.

import { Blocks } from "./blocks.js";

/** @import { PackedBlocks } from "./blocks.js" */
/** @import { Device } from "./device.js" */
/** @import { Test } from "./query.js" */

/** Events that are searched through at a time. */
const STRETCH = 1 << 20;

export class Source {
  /**
   * @param {Device} device
   * @param {Document} page Which carries its blocks.
   * @param {number} place Of the device, over all runs of that page.
   * @param {number | null} number What the server calls it; null where there is none.
   */
  constructor(device, page, place, number) {
    this.device = device;
    this.page = /** @type {Document | null} */ (page);
    this.place = place;
    this.number = number;
    /** @type {Blocks | null} */
    this.inPage = null;
  }

  get isServed() {
    return this.number !== null;
  }

  /** Read the blocks out of the page, which then need not be kept. */
  async load() {
    if (this.page === null) return;
    const element = this.page.getElementById(`blocks-${this.place}`);
    /** @type {PackedBlocks} */
    const packed = JSON.parse(element?.textContent ?? "");
    element?.remove();
    this.page = null;
    this.inPage = await Blocks.load(packed, this.device.events);
  }

  /** Whether every block can be had. */
  get isComplete() {
    return this.device.leastBytes === 0 || this.isServed;
  }

  /** Whether windows come at once. */
  get isLocal() {
    return this.device.leastBytes === 0 || !this.isServed;
  }

  /**
   * The blocks that were held at any time after event `begin` and before event `end`.
   * @param {number} begin
   * @param {number} end
   * @returns {Promise<Blocks>}
   */
  async between(begin, end) {
    if (this.isLocal) return this.betweenInPage(begin, end);
    const query = `device=${this.number}&begin=${begin}&end=${end}`;
    const answer = await fetch(`blocks?${query}`).catch(() => null);
    if (!answer?.ok) throw new Error("The server behind this page does not answer any more.");
    return Blocks.load(await answer.json(), this.device.events);
  }

  betweenInPage(/** @type {number} */ begin, /** @type {number} */ end) {
    return this.blocksInPage().between(begin, end);
  }

  blocksInPage() {
    if (this.inPage === null) throw new Error("the blocks are not there yet");
    return this.inPage;
  }

  /**
   * All blocks of the history that pass a test, in order of allocation; of a long history, stretch
   * by stretch.
   * @param {Test} test
   * @returns {Promise<Blocks>}
   */
  async find(test) {
    const { events } = this.device;
    const length = this.isLocal ? events : STRETCH;
    const found = [];
    for (let begin = 0; begin < events; begin += length) {
      const end = Math.min(begin + length, events);
      const blocks = this.isLocal ? this.blocksInPage() : await this.between(begin, end);
      const rows = [];
      for (let i = 0; i < blocks.length; i++) {
        // What began before was found before.
        const isNew = blocks.start[i] >= begin || begin === 0;
        if (isNew && test(blocks, i)) rows.push(i);
      }
      found.push(blocks.pick(rows));
    }
    return Blocks.join(found);
  }
}
