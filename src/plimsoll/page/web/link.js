// Keeps the moment and the picked block in the page's URL, `#event=4526&block=4420@0x7f7f5c000000`,
// so that the URL is a link to them. Names for the second run begin with `B.`.

/** @import { Actions } from "./actions.js" */
/** @import { Run } from "./history/run.js" */

/** The milliseconds without a change after which the URL is written. */
const REST_MS = 200;

/** The parts of the state that are in a link, by their names in the link. */
const NAMES = /** @type {const} */ ({ by: "key", view: "view" });

export class Link {
  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** The last fragment that was written to the URL. */
    this.written = "";
  }

  /** Returns the URL's fragment for the present moment, picked block, device and state. */
  text() {
    const { runs, store } = this.actions;
    const parts = runs.flatMap((run) => {
      const prefix = run.letter === "B" ? "B." : "";
      const { device, card } = run;
      const found = [`${prefix}event=${run.moment}`];
      if (card !== null) {
        const address = (device.origin + BigInt(card.address)).toString(16);
        found.push(`${prefix}block=${card.start < 0 ? "before" : card.start}@0x${address}`);
      }
      if (run.devices.length > 1) found.push(`${prefix}device=${device.number}`);
      return found;
    });
    for (const [name, key] of Object.entries(NAMES)) parts.push(`${name}=${store.state[key]}`);
    return `#${parts.join("&")}`;
  }

  /** Writes the URL soon, once nothing has changed for `REST_MS`. */
  follow() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), REST_MS);
  }

  write() {
    this.written = this.text();
    if (location.hash !== this.written) history.replaceState(null, "", this.written);
  }

  stop() {
    clearTimeout(this.timer);
  }

  /**
   * Goes to the moment and the block that the URL names.
   * @returns {Promise<string[]>} A sentence for each thing that the URL names and that is missing.
   */
  async read() {
    if (location.hash === this.written || location.hash.length < 2) return [];
    const said = new URLSearchParams(location.hash.slice(1));
    const { actions } = this;
    /** @type {string[]} */
    const problems = [];
    const by = said.get("by");
    if (by !== null && actions.active.device.keys.some(({ name }) => name === by))
      await actions.setKey(by);
    const view = said.get("view");
    if (view !== null) actions.store.set({ view });
    for (const run of actions.runs) {
      const prefix = run.letter === "B" ? "B." : "";
      const get = (/** @type {string} */ name) => said.get(prefix + name);
      problems.push(...(await this.goTo(run, get("device"), get("event"), get("block"))));
    }
    return problems;
  }

  /**
   * @param {Run} run
   * @param {string | null} device
   * @param {string | null} event
   * @param {string | null} block
   */
  async goTo(run, device, event, block) {
    const { actions } = this;
    const problems = [];
    if (device !== null) {
      const place = run.devices.findIndex(({ number }) => String(number) === device);
      if (place < 0)
        problems.push(`The link names device ${device}, which is not in this history.`);
      else if (place !== run.chosen) await actions.setDevice(run, place);
    }
    const { events } = run.device;
    if (block !== null && !(await this.pick(run, block))) {
      problems.push(`The link names a block that is not in this history: ${block}.`);
    }
    if (event === null) return problems;
    const number = /^\d+$/.test(event) ? Number(event) : NaN;
    if (number < events) await actions.goTo(run, number);
    else
      problems.push(`The link names event ${event}; this history has events 0 to ${events - 1}.`);
    return problems;
  }

  /**
   * Picks the block that a link names; returns whether there is such a block.
   * @param {Run} run
   * @param {string} block
   */
  async pick(run, block) {
    const match = /^(before|\d+)@0x([\da-f]{1,16})$/.exec(block);
    if (match === null) return false;
    const start = match[1] === "before" ? -1 : Number(match[1]);
    if (start >= run.device.events) return false;
    const offset = Number(BigInt(`0x${match[2]}`) - run.device.origin);
    const first = Math.max(start, 0);
    const blocks = await run.source.between(start < 0 ? -1 : first, first + 1);
    for (let row = 0; row < blocks.length; row++) {
      if (blocks.start[row] !== start || blocks.address[row] !== offset) continue;
      await this.actions.pickAnywhere(run, blocks, row);
      return true;
    }
    return false;
  }
}
