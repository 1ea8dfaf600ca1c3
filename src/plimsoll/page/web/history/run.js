// One run on the page: its devices, the moment that the page shows, and the picked block.

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
    /** "A" or "B" if the page shows two runs, else "". */
    this.letter = "";
    /** @type {Device[]} */
    this.devices = [];
    /** @type {Source[]} */
    this.sources = [];
    this.chosen = 0;
    /** The moment that the page shows: the state after this event. */
    this.moment = 0;
    /** The blocks held at the moment; null until they are loaded. @type {Blocks | null} */
    this.held = null;
    /** The id of the picked block. @type {string | null} */
    this.picked = null;
    /** The values of the picked block. @type {Picked | null} */
    this.card = null;
    this.asked = 0;
  }

  /**
   * @param {PackedRun} packed
   * @param {Document} page The page that contains the run.
   * @param {number} firstPlace The index of the run's first device among all runs of that page.
   * @param {number | null} firstNumber The server's number of that device; null without a server.
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

  /** Returns words on the blocks that are not available; "" if all are. */
  caveat() {
    if (this.source.isComplete) return "";
    return `, without those under ${formatBytes(this.device.leastBytes)}`;
  }

  /** Loads what the first picture does not need: call stacks and blocks. */
  async loadDetails() {
    for (const device of this.devices) await device.loadStacks();
    for (const source of this.sources) await source.load();
  }

  /**
   * Shows the state after an event.
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
      if (asked !== this.asked) return; // a later call of `goTo` replaces this one
      this.held = held;
    }
    onReady();
  }
}
