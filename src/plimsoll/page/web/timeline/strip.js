// The strip under the timeline: the whole history, with a frame around the window's part.

import { AXES, edgesOf } from "../history/axis.js";
import { asPixel, themeColour } from "../elements/colours.js";
import { fitCanvas, make } from "../elements/dom.js";
import { LEFT, RIGHT } from "./plot.js";
import { spansFromOverview } from "../history/spans.js";
import { paintSpans } from "./bands.js";

/** @import { Run } from "../history/run.js" */
/** @import { Actions } from "../actions.js" */
/** @import { Store } from "../store.js" */

const GRIP = 7;

export class Strip {
  /**
   * @param {Run} run
   * @param {Store} store
   * @param {Actions} actions
   */
  constructor(run, store, actions) {
    this.run = run;
    this.store = store;
    this.actions = actions;
    this.canvas = make("canvas", { class: "layer", "aria-hidden": "true" });
    this.element = make("div", { class: "strip" }, this.canvas);
    /** The part of the frame that is dragged, and the pointer's distance from the part's edge. */
    this.drag = /** @type {{ part: "from" | "to" | "both", offset: number } | null} */ (null);
    /** The state for which `picture` was drawn, as one string. */
    this.drawn = "";
    /** @type {OffscreenCanvas | null} */
    this.picture = null;
    this.listen();
  }

  get width() {
    return Math.max(this.canvas.clientWidth - LEFT - RIGHT, 1);
  }

  placeAt(/** @type {number} */ x) {
    return ((x - LEFT) / this.width) * this.actions.length();
  }

  draw() {
    const { context, width, height, ratio } = fitCanvas(this.canvas);
    if (width <= LEFT) return;
    context.clearRect(0, 0, width, height);
    const { device } = this.run;
    const { state } = this.store;
    const length = this.actions.length();
    const columns = Math.round(this.width * ratio);
    const rows = Math.round(height * ratio);
    const drawn = [device.number, state.axis, state.theme, columns, rows, length].join();
    if (this.drawn !== drawn) {
      this.drawn = drawn;
      const edges = edgesOf(AXES[state.axis], device, { from: 0, to: length }, columns);
      const spans = spansFromOverview(device, "", edges);
      spans.groups = 1;
      spans.bytes = spans.high;
      const image = new ImageData(columns, rows);
      paintSpans(spans, image, {
        groups: Uint32Array.of(asPixel(themeColour("strip"))),
        low: 0,
        high: this.actions.highest(),
        hatched: -1,
        hatch: 0,
      });
      this.picture = new OffscreenCanvas(columns, rows);
      this.picture.getContext("2d")?.putImageData(image, 0, 0);
    }
    if (this.picture) context.drawImage(this.picture, LEFT, 0, this.width, height);
    const from = LEFT + (state.from / length) * this.width;
    const to = LEFT + (state.to / length) * this.width;
    context.fillStyle = themeColour("veil");
    context.fillRect(LEFT, 0, from - LEFT, height);
    context.fillRect(to, 0, LEFT + this.width - to, height);
    context.strokeStyle = context.fillStyle = themeColour("text-2");
    context.lineWidth = 1;
    context.strokeRect(from + 0.5, 0.5, Math.max(to - from - 1, 2), height - 1);
    for (const x of [from, to]) context.fillRect(x - 2, height / 2 - 7, 4, 14);
  }

  listen() {
    const { canvas } = this;
    /** @type {(x: number) => "from" | "to" | "both" | null} */
    const partAt = (x) => {
      const { from, to } = this.store.state;
      const [left, right] = [from, to].map((p) => LEFT + (p / this.actions.length()) * this.width);
      if (Math.abs(x - left) < GRIP && right - left > 2 * GRIP) return "from";
      if (Math.abs(x - right) < GRIP && right - left > 2 * GRIP) return "to";
      return x > left - GRIP && x < right + GRIP ? "both" : null;
    };
    canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
      canvas.setPointerCapture(event.pointerId);
      const place = this.placeAt(event.offsetX);
      const { from, to } = this.store.state;
      const part = partAt(event.offsetX);
      if (part === null) this.actions.show(place - (to - from) / 2, place + (to - from) / 2);
      const now = this.store.state;
      this.drag = { part: part ?? "both", offset: place - (part === "to" ? now.to : now.from) };
    });
    canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      const { from, to } = this.store.state;
      const part = this.drag?.part ?? partAt(event.offsetX);
      canvas.style.cursor = part === null ? "pointer" : part === "both" ? "grab" : "ew-resize";
      if (!this.drag) return;
      const place = this.placeAt(event.offsetX) - this.drag.offset;
      if (this.drag.part === "both") this.actions.pan(place - from);
      else if (this.drag.part === "from") this.actions.show(place, to);
      else this.actions.show(from, place);
    });
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, () => (this.drag = null));
    }
  }
}
