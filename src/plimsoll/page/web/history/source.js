// Gets the blocks of a window, from the page itself or from the server that serves it.

import { Blocks } from "./blocks.js";

/** @import { PackedBlocks } from "./blocks.js" */
/** @import { Device } from "./device.js" */
/** @import { Test } from "./query.js" */

/** A search asks the server for the blocks of this many events at a time. */
const STRETCH = 1 << 20;

export class Source {
  /**
   * @param {Device} device
   * @param {Document} page The page that contains the device's blocks.
   * @param {number} place The device's index among the devices of all runs of that page.
   * @param {number | null} number The server's number of the device; null without a server.
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

  /** Reads the blocks out of the page, and releases the page. */
  async load() {
    if (this.page === null) return;
    const element = this.page.getElementById(`blocks-${this.place}`);
    /** @type {PackedBlocks} */
    const packed = JSON.parse(element?.textContent ?? "");
    element?.remove();
    this.page = null;
    this.inPage = await Blocks.load(packed, this.device.events);
  }

  /** Whether every block of the history is available. */
  get isComplete() {
    return this.device.leastBytes === 0 || this.isServed;
  }

  /** Whether blocks come from the page itself, without a request to the server. */
  get isLocal() {
    return this.device.leastBytes === 0 || !this.isServed;
  }

  /**
   * Returns the blocks that were held at any time after event `begin` and before event `end`.
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
   * Returns all blocks of the history that pass a test, in order of allocation. From a server they
   * are fetched part by part.
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
        // An earlier part has already returned the blocks that were allocated before `begin`.
        const isNew = blocks.start[i] >= begin || begin === 0;
        if (isNew && test(blocks, i)) rows.push(i);
      }
      found.push(blocks.pick(rows));
    }
    return Blocks.join(found);
  }
}
