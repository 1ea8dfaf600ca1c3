// The part of a timeline that shows the window: its pixels, places on the axis, and bytes.

import { AXES } from "../history/axis.js";

/** @import { Run } from "../history/run.js" */
/** @import { Spans } from "../history/spans.js" */
/** @import { Store } from "../store.js" */

/** The room on both sides of a plot, in pixels; the strip under it lines up with it. */
export const LEFT = 62;
export const RIGHT = 8;
const TOP = 25;
const BOTTOM = 20;

export class Plot {
  /**
   * @param {Run} run
   * @param {Store} store
   */
  constructor(run, store) {
    this.run = run;
    this.store = store;
    this.left = LEFT;
    this.top = TOP;
    this.width = 1;
    this.height = 1;
    /** The bytes at the foot and at the top. */
    this.low = 0;
    this.high = 1;
  }

  get axis() {
    return AXES[this.store.state.axis];
  }

  /**
   * Find its size in its element; asking the browser for that takes long.
   * @param {HTMLElement} element
   */
  measure(element) {
    this.width = Math.max(element.clientWidth - LEFT - RIGHT, 1);
    this.height = Math.max(element.clientHeight - TOP - BOTTOM, 1);
  }

  /**
   * From 0 to `highest`, or what the spans need where that is wanted.
   * @param {Spans} spans
   * @param {number} highest
   */
  setBytes(spans, highest) {
    this.low = 0;
    this.high = highest;
    if (!this.store.state.isFitted) return;
    let [low, high] = [Infinity, 0];
    for (let c = 0; c < spans.length; c++) {
      if (spans.event[c] < 0) continue;
      low = Math.min(low, spans.low[c]);
      high = Math.max(high, spans.high[c]);
    }
    if (high === 0) return;
    const room = Math.max((high - low) * 0.08, high * 1e-4, 1);
    this.high = high + room;
    this.low = low < (high - low) / 2 ? 0 : Math.max(low - room, 0);
  }

  /** The pixel of a place on the axis, from the left of the plot. */
  xOf(/** @type {number} */ place) {
    const { from, to } = this.store.state;
    return ((place - from) / (to - from)) * this.width;
  }

  xOfEvent(/** @type {number} */ event) {
    return this.xOf(this.axis.placeOf(this.run.device, event));
  }

  placeAt(/** @type {number} */ x) {
    const { from, to } = this.store.state;
    return from + (x / this.width) * (to - from);
  }

  yOf(/** @type {number} */ bytes) {
    const part = (bytes - this.low) / (this.high - this.low);
    return this.top + this.height * (1 - part);
  }
}
