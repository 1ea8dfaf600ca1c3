// Reserved memory over time: every segment from its allocation by the driver until its release, and
// over the segments a line of the live memory.

import { asPixel, themeColour } from "../elements/colours.js";
import { fitCanvas, make } from "../elements/dom.js";
import {
  formatAddress,
  formatBytes,
  formatCount,
  formatShare,
  plural,
} from "../elements/format.js";
import { edgesOf } from "../history/axis.js";
import { listenToPointer } from "../timeline/gestures.js";
import { drawOverlay } from "../timeline/overlay.js";
import { drawGrid } from "../timeline/picture.js";
import { Plot } from "../timeline/plot.js";
import { WindowSpans } from "../timeline/window_spans.js";
import { KINDS, kindOf, paintSegments, segmentId, SegmentStates, SHADES } from "./stacks.js";

/** @import { Actions } from "../actions.js" */
/** @import { Detail } from "../history/detail.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Segment } from "../history/segments.js" */
/** @import { Store } from "../store.js" */
/** @import { Pointer } from "../timeline/overlay.js" */

export class SegmentTimeline {
  /**
   * @param {Run} run
   * @param {Store} store
   * @param {Actions} actions
   */
  constructor(run, store, actions) {
    this.run = run;
    this.store = store;
    this.actions = actions;
    this.name = "segments";
    this.title = "Segments";
    this.picture = make("canvas", { class: "layer", "aria-hidden": "true" });
    this.overlay = make("canvas", {
      class: "layer",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "timeline of segments",
      "aria-label":
        `Segments over time ${run.letter}`.trim() +
        ": up and down choose a segment, Enter goes to where it was taken, left and right move the moment",
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.onKey(event),
    });
    this.tip = make("div", { class: "tip", hidden: true });
    this.said = make("p", { class: "caption said", role: "status" });
    this.controls = /** @type {Node[]} */ ([]);
    this.element = make(
      "div",
      { class: "segments" },
      this.said,
      make("div", { class: "timeline" }, this.picture, this.overlay, this.tip),
    );
    this.plot = new Plot(run, store);
    this.windowSpans = new WindowSpans(run, store);
    this.states = new SegmentStates(run.device);
    /** The state for which the picture was drawn, as one string. */
    this.drawn = "";
    /** @type {Detail | null} */
    this.drawnDetail = null;
    /** The segments in each column of the picture. @type {Segment[][]} */
    this.columns = [];
    /** The id of the chosen segment, which the caption describes; empty for none. */
    this.chosen = "";
    /** @type {Pointer} */
    this.pointer = { place: null, brush: null };
    listenToPointer(this);
  }

  draw() {
    const { run, plot, actions } = this;
    const { device } = run;
    if (this.states.device !== device) this.states = new SegmentStates(device);
    this.describe();
    const { context, width, height, ratio } = fitCanvas(this.picture);
    if (width <= plot.left) return;
    plot.measure(this.overlay);
    plot.high = actions.highest();
    const columns = Math.round(plot.width * ratio);
    const rows = Math.round(plot.height * ratio);
    const { from, to, axis } = this.store.state;
    const { theme } = document.documentElement.dataset;
    const drawn = [device.number, from, to, axis, theme, columns, rows, ratio, this.chosen].join();
    const { detail } = this.windowSpans;
    if (drawn === this.drawn && detail === this.drawnDetail && !this.windowSpans.isAsking) {
      this.paint(); // only the moment has changed
      return;
    }
    this.drawn = drawn;
    const edges = edgesOf(plot.axis, device, this.store.state, columns);
    this.columns = this.states.columns(edges);
    context.clearRect(0, 0, width, height);
    drawGrid(plot, context);
    const image = new ImageData(columns, rows);
    const colours = Object.fromEntries(
      Object.keys(KINDS).map((kind) => [
        kind,
        SHADES.map((alpha) => asPixel(themeColour(`segment-${kind}`), alpha)),
      ]),
    );
    const chosen = asPixel(themeColour("accent"));
    paintSegments(
      this.columns,
      image,
      plot.high,
      (segment) =>
        segmentId(segment) === this.chosen ? chosen : colours[kindOf(segment)][segment.row % 2],
      asPixel(themeColour("panel")),
    );
    const scratch = new OffscreenCanvas(columns, rows);
    scratch.getContext("2d")?.putImageData(image, 0, 0);
    context.drawImage(scratch, plot.left, plot.top, plot.width, plot.height);
    this.drawLive(context, edges, ratio);
    this.drawnDetail = this.windowSpans.detail;
    this.paint();
  }

  /**
   * Draws the line of live memory.
   * @param {CanvasRenderingContext2D} context
   * @param {Int32Array} edges
   * @param {number} ratio
   */
  drawLive(context, edges, ratio) {
    const { plot } = this;
    const spans = this.windowSpans.find(edges);
    context.beginPath();
    for (let c = 0; c < spans.length; c++) {
      if (spans.event[c] < 0) continue;
      context.lineTo(plot.left + (c + 0.5) / ratio, plot.yOf(spans.high[c]));
    }
    context.lineWidth = 3;
    context.strokeStyle = themeColour("panel");
    context.stroke();
    context.lineWidth = 1.5;
    context.strokeStyle = themeColour("text");
    context.stroke();
  }

  paint() {
    this.drawOverlay();
  }

  drawOverlay() {
    drawOverlay(this.plot, this.overlay, this.pointer);
  }

  /** Shows the caption: about the chosen segment, or about all segments at the moment. */
  describe() {
    const { run } = this;
    const present = run.device.segments.presentAt(run.moment);
    const chosen = present.find((one) => segmentId(one) === this.chosen);
    if (chosen) {
      this.said.replaceChildren(make("strong", {}, this.textOf(chosen)), ` ${this.whenOf(chosen)}`);
      return;
    }
    this.chosen = "";
    const reserved = present.reduce((sum, { size }) => sum + size, 0);
    const kinds = /** @type {(keyof typeof KINDS)[]} */ (Object.keys(KINDS));
    this.said.replaceChildren(
      make(
        "span",
        { class: "part" },
        `${plural(present.length, "segment")}, ${formatBytes(reserved)}; the line is what is live.`,
      ),
      ...kinds
        .filter((kind) => present.some((one) => kindOf(one) === kind))
        .map((kind) =>
          make(
            "span",
            { class: "part" },
            make("span", { class: `swatch segment-${kind}` }),
            KINDS[kind],
          ),
        ),
    );
  }

  textOf(/** @type {Segment} */ segment) {
    const { device } = this.run;
    const stream = device.streams[segment.stream];
    const on = stream === "0" ? "default stream" : `stream 0x${BigInt(stream ?? 0).toString(16)}`;
    const pieces = segment.pieces.length > 1 ? ` in ${plural(segment.pieces.length, "piece")}` : "";
    const pool = segment.isPrivate ? ", private pool" : "";
    const address = formatAddress(device.origin, segment.address);
    return `Segment of ${formatBytes(segment.size)}${pieces} at ${address}, ${on}${pool}`;
  }

  takenOf(/** @type {Segment} */ { start }) {
    return start < 0 ? "there before the first event" : `taken at event ${formatCount(start)}`;
  }

  whenOf(/** @type {Segment} */ segment) {
    const taken = this.takenOf(segment);
    const { held, moment } = this.run;
    if (held === null) return taken;
    let live = 0;
    for (let i = 0; i < held.length; i++) {
      const offset = held.address[i] - segment.address;
      if (held.isLive(i, moment) && offset >= 0 && offset < segment.size) live += held.size[i];
    }
    return `${taken}; ${formatBytes(live)} live in it now (${formatShare(live, segment.size)})${this.run.caveat()}`;
  }

  /** Returns the segment under the pointer. @returns {Segment | null} */
  segmentAt() {
    const { place } = this.pointer;
    const { plot, columns } = this;
    if (place === null || columns.length === 0) return null;
    const column = Math.floor(((place.x - plot.left) / plot.width) * columns.length);
    const bytes = plot.high * (1 - (place.y - plot.top) / plot.height);
    let sum = 0;
    if (bytes < 0) return null;
    for (const segment of columns[column] ?? []) {
      sum += segment.size;
      if (bytes < sum) return segment;
    }
    return null;
  }

  showTip() {
    const { tip, pointer } = this;
    const segment = this.segmentAt();
    tip.hidden = segment === null;
    if (segment === null || pointer.place === null) return;
    const taken = this.takenOf(segment);
    tip.replaceChildren(
      make("strong", {}, this.textOf(segment)),
      make("div", {}, taken),
      make("div", { class: "faint" }, KINDS[kindOf(segment)]),
    );
    const room = this.overlay.clientWidth;
    const isLeft = pointer.place.x > room / 2;
    tip.style.left = isLeft ? "" : `${pointer.place.x + 14}px`;
    tip.style.right = isLeft ? `${room - pointer.place.x + 14}px` : "";
  }

  /** Chooses the moment at a pixel, and the segment under the pointer. */
  pick(/** @type {number} */ x) {
    const { plot, run } = this;
    const segment = this.segmentAt();
    this.chosen = segment === null ? "" : segmentId(segment);
    const event = plot.axis.eventAt(run.device, plot.placeAt(x - plot.left));
    this.actions.goTo(run, event);
    this.draw();
  }

  onKey(/** @type {KeyboardEvent} */ event) {
    const step = /** @type {Record<string, number>} */ ({ ArrowUp: 1, ArrowDown: -1, Enter: 0 })[
      event.key
    ];
    if (step === undefined) return;
    const { run } = this;
    const present = run.device.segments.presentAt(run.moment);
    present.sort((a, b) => a.start - b.start || a.address - b.address);
    if (present.length === 0) return;
    event.preventDefault();
    event.stopPropagation();
    const now = present.findIndex((one) => segmentId(one) === this.chosen);
    if (step === 0) {
      if (now >= 0) this.actions.goTo(run, Math.max(present[now].start, 0));
      return;
    }
    const next = now < 0 ? (step > 0 ? 0 : present.length - 1) : now + step;
    this.chosen = segmentId(present[Math.min(Math.max(next, 0), present.length - 1)]);
    this.draw();
  }
}
