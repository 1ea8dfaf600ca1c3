// The address of the page names what is looked at: `#event=4526&block=4420@0x7f7f5c000000`, so that
// a link leads others to it. What is of the second run has `B.` before it.

/** @import { Actions } from "./actions.js" */
/** @import { Run } from "./history/run.js" */

/** The address is written once nothing has changed for so long. */
const REST_MS = 200;

/** Which parts of the state a link has, and what it calls them. */
const NAMES = /** @type {const} */ ({ by: "key", view: "view" });

export class Link {
  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** What was written last. */
    this.written = "";
  }

  /** What is looked at, as the address has it. */
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

  /** Have the address follow what is looked at. */
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
   * Go to what the address names.
   * @returns {Promise<string[]>} What of it is not there, a sentence each.
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
   * Whether there is such a block, which then is picked.
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
