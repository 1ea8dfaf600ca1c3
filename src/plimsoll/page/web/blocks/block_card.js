// The card of the picked block: its life, its address, and the call stacks of allocation and free.

import { groupColour } from "../elements/colours.js";
import { takenBytes } from "../history/blocks.js";
import { stackList } from "./stack_list.js";
import { make, refill, swatch } from "../elements/dom.js";
import {
  formatAddress,
  formatBytes,
  formatCount,
  formatExactly,
  formatTime,
  plural,
} from "../elements/format.js";

/** @import { Picked } from "../history/blocks.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Actions } from "../actions.js" */
/** @import { Store } from "../store.js" */

export class BlockCard {
  /**
   * @param {Run} run
   * @param {Store} store
   * @param {Actions} actions
   */
  constructor(run, store, actions) {
    this.run = run;
    this.store = store;
    this.actions = actions;
    this.element = make("section", {
      class: "card block",
      "aria-label": "Picked block",
      "aria-live": "polite",
      hidden: true,
    });
  }

  draw() {
    const { run, actions } = this;
    const { card } = run;
    this.element.hidden = card === null;
    if (card === null) return;
    const close = make(
      "button",
      { class: "close", "aria-label": "Close", onclick: () => actions.pickBlock(run, -1) },
      "✕",
    );
    const facts = make("dl", {}, ...this.facts(card));
    refill(this.element, [
      make("header", {}, make("h2", {}, `Block of ${formatBytes(card.size)}`), close),
      facts,
      this.stacks(card),
    ]);
  }

  /** @param {Picked} card */
  facts(card) {
    const { run, actions } = this;
    const { device } = run;
    /** @type {HTMLElement[]} */
    const facts = [];
    const say = (/** @type {string} */ term, /** @type {(Node | string)[]} */ ...said) =>
      facts.push(make("dt", {}, term), make("dd", {}, ...said));
    const link = (/** @type {number} */ event, /** @type {string} */ text) =>
      make("button", { class: "link", onclick: () => actions.goTo(run, event) }, text);
    const at = (/** @type {number} */ event) =>
      `event ${formatCount(event)}, ${device.span > 1 ? "about " : ""}${formatTime(device.timeOf(event))}`;
    say("size", formatExactly(card.size));
    const taken = takenBytes(card.size, card.rounding);
    if (taken > card.size)
      say("takes", `${formatExactly(taken)}: ${formatBytes(taken - card.size)} more by rounding`);
    if (card.shared > 0) say("in shared memory", formatExactly(card.shared));
    say("address", formatAddress(device.origin, card.address));
    const category = device.categories[card.category];
    const key = device.keys.find(({ name }) => name === "category");
    if (key) {
      const group = key.table[card.category];
      const isKey = this.store.state.key === "category";
      const colour = groupColour(actions.colours(run)[group] ?? 11);
      say("category", ...(isKey ? [swatch(colour)] : []), category.replace("_", " "));
    }
    const stream = device.streams[card.stream];
    const pool = device.pools[card.pool];
    say("stream", stream === "0" ? "default" : `0x${BigInt(stream).toString(16)}`);
    if (pool !== "0.0") say("private pool", pool);
    say("allocated", card.start < 0 ? "before the first event" : link(card.start, at(card.start)));
    if (card.end >= device.events) say("freed", "never in this history");
    else if (card.end < 0) say("freed", "before the first event");
    else {
      say("freed", link(card.end, at(card.end)));
      if (card.start >= 0) {
        const time = formatTime(device.timeOf(card.end) - device.timeOf(card.start));
        say("lived", `${plural(card.end - card.start, "event")}, ${time}`);
      }
    }
    if (card.completed > card.end + 1 && card.end < device.events) {
      const done = card.completed >= device.events;
      say("other streams", done ? "never done with it" : `done with it at ${at(card.completed)}`);
    }
    const same = this.ofSameLine(card);
    if (same && same.count > 1) {
      say("from this line", `${plural(same.count, "block")} live now, ${formatBytes(same.bytes)}`);
    }
    return facts;
  }

  /** @param {Picked} card */
  ofSameLine(card) {
    const { device, held, moment } = this.run;
    if (
      !held ||
      !device.stacks ||
      card.stack === 0 ||
      device.stacks.frames(card.stack).length === 0
    ) {
      return null;
    }
    const line = device.stacks.lineIndex(card.stack);
    let [count, bytes] = [0, 0];
    for (let i = 0; i < held.length; i++) {
      if (!held.isLive(i, moment) || device.stacks.lineIndex(held.stack[i]) !== line) continue;
      count++;
      bytes += held.size[i];
    }
    return { count, bytes };
  }

  /**
   * Returns an element with the call stacks of the allocation and of the free, side by side.
   * @param {Picked} card
   */
  stacks(card) {
    const { device } = this.run;
    const column = (/** @type {string} */ title, /** @type {Node} */ content) =>
      make("div", { class: "asked" }, make("h3", {}, title), content);
    const columns = [
      column("Allocated by", stackList(device.stacks, card.stack, "Call stack of the allocation")),
    ];
    if (card.end >= 0 && card.end < device.events) {
      columns.push(
        column("Freed by", stackList(device.stacks, card.freed_by, "Call stack of the free")),
      );
    }
    return make("div", { class: "stacks" }, ...columns);
  }
}
