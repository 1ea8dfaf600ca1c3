// The timeline of live memory: a band for each group, the line of reserved memory above the bands,
// marks, and the moment.

import { asPixel, groupColour, themeColour } from "../elements/colours.js";
import { fitCanvas, make } from "../elements/dom.js";
import { formatBytes, formatCount } from "../elements/format.js";
import { edgesOf } from "../history/axis.js";
import { paintSpans } from "./bands.js";
import { listenToPointer } from "./gestures.js";
import { crowds, foremost } from "./marks.js";
import { drawOverlay } from "./overlay.js";
import { drawGrid, drawLines, drawMarks, drawNames } from "./picture.js";
import { Plot } from "./plot.js";
import { tipRows } from "./tip.js";
import { WindowSpans } from "./window_spans.js";

/** @import { Actions } from "../actions.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Spans } from "../history/spans.js" */
/** @import { Store } from "../store.js" */
/** @import { Crowd } from "./marks.js" */
/** @import { Pointer } from "./overlay.js" */

export class Timeline {
  /**
   * @param {Run} run
   * @param {Store} store
   * @param {Actions} actions
   */
  constructor(run, store, actions) {
    this.run = run;
    this.store = store;
    this.actions = actions;
    this.picture = make("canvas", { class: "layer", "aria-hidden": "true" });
    this.overlay = make("canvas", {
      class: "layer",
      tabindex: "0",
      role: "slider",
      "aria-label": `Timeline of live memory ${run.letter}`.trim(),
      "aria-valuemin": "0",
    });
    this.tip = make("div", { class: "tip", hidden: true });
    this.element = make("div", { class: "timeline" }, this.picture, this.overlay, this.tip);
    this.plot = new Plot(run, store);
    this.windowSpans = new WindowSpans(run, store);
    /** @type {Spans | null} */
    this.spans = null;
    this.image = new ImageData(1, 1);
    this.scratch = new OffscreenCanvas(1, 1);
    /** @type {Crowd[]} */
    this.crowds = [];
    /** @type {Pointer} */
    this.pointer = { place: null, brush: null };
    listenToPointer(this);
  }

  draw() {
    const { context, width, height, ratio } = fitCanvas(this.picture);
    const { plot } = this;
    if (width <= plot.left) return;
    plot.measure(this.overlay);
    const columns = Math.round(plot.width * ratio);
    const edges = edgesOf(plot.axis, this.run.device, this.store.state, columns);
    const spans = this.windowSpans.find(edges);
    this.spans = spans;
    plot.setBytes(spans, this.actions.highest());
    context.clearRect(0, 0, width, height);
    drawGrid(plot, context);
    const rows = Math.round(plot.height * ratio);
    if (this.image.width !== columns || this.image.height !== rows) {
      this.image = new ImageData(columns, rows);
      this.scratch = new OffscreenCanvas(columns, rows);
    }
    paintSpans(spans, this.image, this.paints(spans));
    this.scratch.getContext("2d")?.putImageData(this.image, 0, 0);
    context.drawImage(this.scratch, plot.left, plot.top, plot.width, plot.height);
    drawLines(plot, context, spans, ratio);
    drawNames(plot, context, spans, ratio);
    this.crowds = crowds(this.run.device.moments, (event) => plot.xOfEvent(event), plot.width, 7);
    drawMarks(plot, context, this.crowds);
    this.drawOverlay();
  }

  /** @param {Spans} spans */
  paints(spans) {
    const { only } = this.store.state;
    const names = this.run.device.key(this.store.state.key).groups;
    const numbers = this.actions.colours(this.run);
    const groups = new Uint32Array(spans.groups);
    for (let g = 0; g < spans.groups; g++) {
      const isShown = only === null || only === names[g];
      groups[g] = asPixel(isShown ? groupColour(numbers[g] ?? 11) : themeColour("dimmed"));
    }
    const hatched = spans.groups > names.length ? names.length : -1;
    const hatch = asPixel(themeColour("panel"));
    return { groups, low: this.plot.low, high: this.plot.high, hatched, hatch };
  }

  drawOverlay() {
    drawOverlay(this.plot, this.overlay, this.pointer);
    this.describe();
  }

  describe() {
    const { run } = this;
    const { device } = run;
    this.overlay.setAttribute("aria-valuemax", String(device.events - 1));
    this.overlay.setAttribute("aria-valuenow", String(run.moment));
    const summary = this.actions.summary(run);
    this.overlay.setAttribute(
      "aria-valuetext",
      `event ${formatCount(run.moment)}, ${formatBytes(summary.live)} live, ` +
        `${formatBytes(summary.reserved)} reserved`,
    );
  }

  /** Returns the column of the picture at a pixel; -1 if there is none. */
  columnAt(/** @type {number} */ x) {
    if (!this.spans) return -1;
    const column = Math.floor(((x - this.plot.left) / this.plot.width) * this.spans.length);
    return column >= 0 && column < this.spans.length && this.spans.event[column] >= 0 ? column : -1;
  }

  /** Returns the marks at a pixel. */
  crowdAt(/** @type {number} */ x) {
    return this.crowds.find((crowd) => Math.abs(crowd.x + this.plot.left - x) < 5);
  }

  pick(/** @type {number} */ x) {
    const near = this.crowdAt(x);
    const isOnMark = near && this.pointer.place && this.pointer.place.y < this.plot.top;
    const column = this.columnAt(x);
    if (isOnMark) this.actions.goTo(this.run, foremost(near.moments).event);
    else if (column >= 0) this.actions.goTo(this.run, this.spans?.event[column] ?? 0);
  }

  showTip() {
    const { tip, spans } = this;
    const { place } = this.pointer;
    const column = place ? this.columnAt(place.x) : -1;
    if (!place || column < 0 || !spans) {
      tip.hidden = true;
      return;
    }
    const rows = tipRows(this.run, this.actions, spans, column, this.crowdAt(place.x));
    tip.replaceChildren(...rows);
    tip.hidden = false;
    const room = this.overlay.clientWidth;
    const isLeft = place.x > room / 2;
    tip.style.left = isLeft ? "" : `${place.x + 14}px`;
    tip.style.right = isLeft ? `${room - place.x + 14}px` : "";
  }
}
