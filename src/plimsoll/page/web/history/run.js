// One run on the page: its devices, the moment that is looked at, and the block that is picked.

import { formatBytes } from "../elements/format.js";
import { Device } from "./device.js";
import { Source } from "./source.js";

/** @import { PackedDevice } from "./device.js" */
/** @import { Blocks, Picked } from "./blocks.js" */

/** @typedef {{ name: string, devices: PackedDevice[] }} PackedRun */

export class Run {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
    /** "A" or "B" where two are shown, else "". */
    this.letter = "";
    /** @type {Device[]} */
    this.devices = [];
    /** @type {Source[]} */
    this.sources = [];
    this.chosen = 0;
    /** The event after which the state is shown. */
    this.moment = 0;
    /** What was held then, or null while it is on its way. @type {Blocks | null} */
    this.held = null;
    /** The id of the picked block. @type {string | null} */
    this.picked = null;
    /** All that is known of it. @type {Picked | null} */
    this.card = null;
    this.asked = 0;
  }

  /**
   * @param {PackedRun} packed
   * @param {Document} page Which carries it.
   * @param {number} firstPlace Of its first device, over all runs of that page.
   * @param {number | null} firstNumber What the server calls that device; null without a server.
   */
  static async load(packed, page, firstPlace, firstNumber) {
    const run = new Run(packed.name);
    run.devices = await Promise.all(packed.devices.map(Device.load));
    run.sources = run.devices.map((device, i) => {
      const number = firstNumber === null ? null : firstNumber + i;
      return new Source(device, page, firstPlace + i, number);
    });
    run.moment = run.device.peakEvent();
    return run;
  }

  get device() {
    return this.devices[this.chosen];
  }

  get source() {
    return this.sources[this.chosen];
  }

  /** What is not among the blocks that are at hand; empty where all are. */
  caveat() {
    if (this.source.isComplete) return "";
    return `, without those under ${formatBytes(this.device.leastBytes)}`;
  }

  /** Read what the first picture does not need. */
  async loadDetails() {
    for (const device of this.devices) await device.loadStacks();
    for (const source of this.sources) await source.load();
  }

  /**
   * Look at the state after an event.
   * @param {number} event
   * @param {() => void} onReady
   */
  async goTo(event, onReady) {
    this.moment = Math.min(Math.max(event, 0), this.device.events - 1);
    const asked = ++this.asked;
    if (this.source.inPage === null) return;
    if (this.source.isLocal) {
      this.held = this.source.betweenInPage(this.moment, this.moment + 1);
    } else {
      const held = await this.source.between(this.moment, this.moment + 1);
      if (asked !== this.asked) return; // meanwhile, another moment was asked for
      this.held = held;
    }
    onReady();
  }
}
