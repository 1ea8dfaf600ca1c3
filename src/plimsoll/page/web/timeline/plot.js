// The plot: the part of a timeline that shows the window. It converts between pixels, places on the
// axis, and bytes.

import { AXES } from "../history/axis.js";

/** @import { Run } from "../history/run.js" */
/** @import { Spans } from "../history/spans.js" */
/** @import { Store } from "../store.js" */

/** The pixels left and right of a plot; the strip under the plot has the same margins. */
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
    /** The bytes at the bottom of the plot (`low`) and at its top (`high`). */
    this.low = 0;
    this.high = 1;
  }

  get axis() {
    return AXES[this.store.state.axis];
  }

  /**
   * Measures the plot's size in its element, and keeps it, because asking the browser is slow.
   * @param {HTMLElement} element
   */
  measure(element) {
    this.width = Math.max(element.clientWidth - LEFT - RIGHT, 1);
    this.height = Math.max(element.clientHeight - TOP - BOTTOM, 1);
  }

  /**
   * Sets the scale of bytes: from 0 to `highest`, or, if the user chose "Fit", what the spans need.
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

  /** Returns the pixel of a place on the axis, counted from the left of the plot. */
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
