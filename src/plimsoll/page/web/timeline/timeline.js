// The timeline of live memory: pictures of spans, what is reserved above them, marks, a moment.

import { AXES, byteTicksBetween, edgesOf, ticksBetween } from "../history/axis.js";
import { asPixel, groupColour, themeColour } from "../elements/colours.js";
import { fitCanvas, make } from "../elements/dom.js";
import { formatBytes, formatCount, formatTime, shortName } from "../elements/format.js";
import { LEFT, RIGHT } from "./plot.js";
import { crowds, foremost, MARKS } from "./marks.js";
import { paintSpans, placesForNames } from "./bands.js";
import { Detail } from "../history/detail.js";
import { spansFromOverview } from "../history/spans.js";

/** @import { Moment } from "../history/device.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Spans } from "../history/spans.js" */
/** @import { Actions } from "../actions.js" */
/** @import { Store } from "../store.js" */

const TOP = 25;
const BOTTOM = 20;

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
    /** @type {Detail | null} */
    this.detail = null;
    /** @type {Spans | null} */
    this.spans = null;
    this.plot = { left: LEFT, top: TOP, width: 1, height: 1 };
    this.low = 0;
    this.high = 1;
    this.image = new ImageData(1, 1);
    this.scratch = new OffscreenCanvas(1, 1);
    /** @type {{ x: number, moments: Moment[] }[]} */
    this.crowds = [];
    /** @type {{ x: number, y: number } | null} */
    this.pointer = null;
    /** Where a brush began, in pixels. @type {number | null} */
    this.brush = null;
    this.isAsking = false;
    this.listen();
  }

  get axis() {
    return AXES[this.store.state.axis];
  }

  get device() {
    return this.run.device;
  }

  /** Find the part of the element that shows the window; asking the browser for it takes long. */
  measure() {
    this.plot = {
      left: LEFT,
      top: TOP,
      width: Math.max(this.overlay.clientWidth - LEFT - RIGHT, 1),
      height: Math.max(this.overlay.clientHeight - TOP - BOTTOM, 1),
    };
    return this.plot;
  }

  /** The pixel of a place on the axis, from the left of the plot. */
  xOf(/** @type {number} */ place) {
    const { from, to } = this.store.state;
    return ((place - from) / (to - from)) * this.plot.width;
  }

  xOfEvent(/** @type {number} */ event) {
    return this.xOf(this.axis.placeOf(this.device, event));
  }

  placeAt(/** @type {number} */ x) {
    const { from, to } = this.store.state;
    return from + (x / this.plot.width) * (to - from);
  }

  // What is drawn

  draw() {
    const { context, width, height, ratio } = fitCanvas(this.picture);
    if (width <= LEFT) return;
    const plot = this.measure();
    const columns = Math.round(plot.width * ratio);
    const edges = edgesOf(this.axis, this.device, this.store.state, columns);
    const spans = this.findSpans(edges);
    this.spans = spans;
    this.setHeight(spans);
    context.clearRect(0, 0, width, height);
    this.drawGrid(context);
    const rows = Math.round(plot.height * ratio);
    if (this.image.width !== columns || this.image.height !== rows) {
      this.image = new ImageData(columns, rows);
      this.scratch = new OffscreenCanvas(columns, rows);
    }
    paintSpans(spans, this.image, this.paints(spans));
    this.scratch.getContext("2d")?.putImageData(this.image, 0, 0);
    context.drawImage(this.scratch, plot.left, plot.top, plot.width, plot.height);
    this.drawLines(context, spans, ratio);
    this.drawNames(context, spans, ratio);
    this.drawMarks(context);
    this.drawOverlay();
  }

  /** @param {Int32Array} edges */
  findSpans(edges) {
    const { device } = this;
    const shown = edges[edges.length - 1] - Math.max(edges[0], 0);
    // Columns of less than a span of the overview: from the blocks themselves.
    if (device.span > 1 && shown < edges.length * device.span) {
      if (this.detail?.device === device && this.detail.covers(edges)) {
        return this.detail.spans(this.store.state.key, edges);
      }
      if (this.fetchDetail(edges) && this.detail) {
        return this.detail.spans(this.store.state.key, edges);
      }
    }
    return spansFromOverview(device, this.store.state.key, edges);
  }

  /**
   * Get the blocks around a window. True if they are there at once.
   * @param {Int32Array} edges
   */
  fetchDetail(edges) {
    const { device } = this;
    const { source } = this.run;
    if (source.inPage === null) return false;
    const first = Math.max(edges[0], 0);
    const last = Math.min(edges[edges.length - 1] + 1, device.events);
    const margin = Math.max(last - first, 2048);
    const begin = Math.max(first - margin, 0);
    const end = Math.min(last + margin, device.events);
    if (source.isLocal) {
      const blocks = source.betweenInPage(begin, end);
      this.detail = new Detail(device, blocks, begin, end, source.isComplete);
      return true;
    }
    if (!this.isAsking) {
      this.isAsking = true;
      source
        .between(begin, end)
        .then((blocks) => {
          this.detail = new Detail(device, blocks, begin, end, true);
          this.store.touch("window");
        })
        .finally(() => (this.isAsking = false));
    }
    return false;
  }

  /** @param {Spans} spans */
  setHeight(spans) {
    this.low = 0;
    this.high = this.actions.highest();
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

  yOf(/** @type {number} */ bytes) {
    const { top, height } = this.plot;
    const part = (bytes - (this.low)) / ((this.high) - (this.low));
    return top + height * (1 - part);
  }

  /** @param {Spans} spans */
  paints(spans) {
    const { only } = this.store.state;
    const names = this.device.key(this.store.state.key).groups;
    const numbers = this.actions.colours(this.run);
    const groups = new Uint32Array(spans.groups);
    for (let g = 0; g < spans.groups; g++) {
      const isShown = only === null || only === names[g];
      groups[g] = asPixel(isShown ? groupColour(numbers[g] ?? 11) : themeColour("dimmed"));
    }
    const hatched = spans.groups > names.length ? names.length : -1;
    const hatch = asPixel(themeColour("panel"));
    return { groups, low: this.low, high: this.high, hatched, hatch };
  }

  /** @param {CanvasRenderingContext2D} context */
  drawGrid(context) {
    const { left, top, width, height } = this.plot;
    const { from, to } = this.store.state;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = themeColour("text-2");
    context.strokeStyle = themeColour("grid");
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const bytes of byteTicksBetween(this.low, this.high, Math.max(height / 36, 2))) {
      const y = Math.round(this.yOf(bytes)) + 0.5;
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(left + width, y);
      context.stroke();
      context.fillText(bytes === 0 ? "0" : formatBytes(bytes).replace(/\.?0+ /, " "), left - 6, y);
    }
    if (this.low) {
      context.fillText("not from 0", left - 6, top + height + 11);
    }
    context.textBaseline = "top";
    const ticks = ticksBetween(from, to, Math.max(width / 110, 2), this.axis === AXES.events ? 1 : 0);
    for (const tick of ticks) {
      const x = left + this.xOf(tick);
      context.textAlign = x < left + 20 ? "left" : x > left + width - 30 ? "right" : "center";
      context.fillText(this.axis.format(tick), x, top + height + 5);
      context.fillRect(Math.round(x), top + height, 1, 3);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Spans} spans
   * @param {number} ratio
   */
  drawLines(context, spans, ratio) {
    /**
     * @param {Float64Array} values
     * @param {string} colour
     * @param {number} width
     * @param {number[]} dash
     */
    const line = (values, colour, width, dash) => {
      context.save();
      context.beginPath();
      context.rect(LEFT, TOP - 1, this.plot.width, this.plot.height + 2);
      context.clip();
      context.beginPath();
      let isDown = false;
      for (let c = 0; c < spans.length; c++) {
        if (spans.event[c] < 0) {
          isDown = false;
          continue;
        }
        const x = LEFT + (c + 0.5) / ratio;
        const y = this.yOf(values[c]);
        if (isDown) context.lineTo(x, y);
        else context.moveTo(x, y);
        isDown = true;
      }
      context.strokeStyle = themeColour(colour);
      context.lineWidth = width;
      context.setLineDash(dash);
      context.stroke();
      context.restore();
    };
    line(spans.low, "low-line", 1, []);
    line(spans.reserved, "reserved-line", 1.5, []);
    this.nameLine(context, spans.reserved, spans, "reserved", "reserved-line");
    if (this.device.sharedPeak === 0) return;
    line(spans.shared, "shared-line", 1.5, [5, 3]);
    this.nameLine(context, spans.shared, spans, "in shared memory", "shared-line");
  }

  /**
   * The name of a line, at its right end.
   * @param {CanvasRenderingContext2D} context
   * @param {Float64Array} values
   * @param {Spans} spans
   * @param {string} name
   * @param {string} colour
   */
  nameLine(context, values, spans, name, colour) {
    let last = spans.length - 1;
    while (last > 0 && spans.event[last] < 0) last--;
    const y = this.yOf(values[last]);
    if (y < TOP || y > TOP + this.plot.height || values[last] === 0) return;
    context.font = "600 11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = y > TOP + 14 ? "bottom" : "top";
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeStyle = themeColour("panel");
    context.fillStyle = themeColour(colour);
    const x = LEFT + ((last + 1) / spans.length) * this.plot.width - 4;
    const text = `${name} ${formatBytes(values[last])}`;
    context.strokeText(text, x, y > TOP + 14 ? y - 2 : y + 3);
    context.fillText(text, x, y > TOP + 14 ? y - 2 : y + 3);
  }

  /**
   * Names in the bands that have room for them, so that colour is not all that tells them apart.
   * @param {CanvasRenderingContext2D} context
   * @param {Spans} spans
   * @param {number} ratio
   */
  drawNames(context, spans, ratio) {
    const names = this.device.key(this.store.state.key).groups;
    context.font = "600 11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "center";
    const { top, height } = this.plot;
    const yOf = (/** @type {number} */ b) => Math.min(Math.max(this.yOf(b), top), top + height);
    for (const { group, from, to, y } of placesForNames(spans, yOf, 15)) {
      const name = shortName(names[group] ?? "small blocks, summed up");
      const room = (to - from) / ratio;
      if (context.measureText(name).width + 10 > room) continue;
      const x = LEFT + (from + to) / 2 / ratio;
      context.lineWidth = 3;
      context.lineJoin = "round";
      context.strokeStyle = themeColour("halo");
      context.strokeText(name, x, y);
      context.fillStyle = themeColour("on-group");
      context.fillText(name, x, y);
    }
  }

  /** @param {CanvasRenderingContext2D} context */
  drawMarks(context) {
    const { left, top, width, height } = this.plot;
    context.save();
    context.beginPath();
    context.rect(left, 0, width, top + height);
    context.clip();
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    this.crowds = crowds(this.device.moments, (event) => this.xOfEvent(event), width, 7);
    for (const { x, moments } of this.crowds) {
      const { kind } = foremost(moments);
      const { sign, colour } = MARKS[kind];
      context.fillStyle = themeColour(colour);
      context.globalAlpha = kind === "step" ? 0.3 : 0.55;
      const isLone = kind !== "step" || moments.length === 1;
      if (isLone) context.fillRect(Math.round(left + x), top, 1, height);
      context.globalAlpha = 1;
      if (kind === "step") context.fillRect(Math.round(left + x), top - 6, 1, 6);
      else context.fillText(sign, left + x, top - 17);
    }
    context.restore();
  }

  drawOverlay() {
    const { context, width, height } = fitCanvas(this.overlay);
    context.clearRect(0, 0, width, height);
    const plot = this.plot;
    context.save();
    context.beginPath();
    context.rect(plot.left - 6, 0, plot.width + 12, height);
    context.clip();
    this.drawLife(context);
    const x = Math.round(plot.left + this.xOfEvent(this.run.moment)) + 0.5;
    context.strokeStyle = context.fillStyle = themeColour("accent");
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, plot.top - 3);
    context.lineTo(x, plot.top + plot.height);
    context.stroke();
    context.beginPath();
    context.moveTo(x - 5, plot.top - 8);
    context.lineTo(x + 5, plot.top - 8);
    context.lineTo(x, plot.top - 1);
    context.fill();
    if (this.pointer && this.brush === null) {
      context.strokeStyle = themeColour("text-2");
      context.lineWidth = 1;
      context.setLineDash([2, 3]);
      context.strokeRect(Math.round(this.pointer.x) + 0.5, plot.top, 0, plot.height);
      context.setLineDash([]);
    }
    if (this.pointer && this.brush !== null) {
      const from = Math.min(this.brush, this.pointer.x);
      context.globalAlpha = 0.2;
      context.fillRect(from, plot.top, Math.abs(this.brush - this.pointer.x), plot.height);
      context.globalAlpha = 1;
    }
    context.restore();
    this.describe();
  }

  /** The life of the picked block, as a bar at the foot. */
  drawLife(/** @type {CanvasRenderingContext2D} */ context) {
    const { card } = this.run;
    if (!card) return;
    const { top, left, height, width } = this.plot;
    const from = left + Math.max(this.xOfEvent(Math.max(card.start, 0)), 0);
    const to = left + Math.min(this.xOfEvent(Math.min(card.end, this.device.events - 1)), width);
    if (to < left || from > left + width) return;
    context.fillStyle = themeColour("accent");
    context.fillRect(from, top + height - 4, Math.max(to - from, 2), 4);
  }

  describe() {
    const { device, run } = this;
    this.overlay.setAttribute("aria-valuemax", String(device.events - 1));
    this.overlay.setAttribute("aria-valuenow", String(run.moment));
    const summary = this.actions.summary(run);
    this.overlay.setAttribute(
      "aria-valuetext",
      `event ${formatCount(run.moment)}, ${formatBytes(summary.live)} live, ` +
        `${formatBytes(summary.reserved)} reserved`,
    );
  }

  // The pointer

  listen() {
    const { overlay } = this;
    overlay.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      this.pointer = { x: event.offsetX, y: event.offsetY };
      this.drawOverlay();
      this.showTip();
    });
    overlay.addEventListener("pointerleave", () => {
      if (this.brush !== null) return;
      this.pointer = null;
      this.tip.hidden = true;
      this.drawOverlay();
    });
    overlay.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
      if (event.button !== 0) return;
      overlay.setPointerCapture(event.pointerId);
      this.brush = event.offsetX;
    });
    overlay.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => {
      const begin = this.brush;
      this.brush = null;
      if (begin === null) return;
      const end = event.offsetX;
      if (Math.abs(end - begin) < 4) this.pick(end);
      else if (!event.shiftKey) {
        const [left, right] = [Math.min(begin, end) - LEFT, Math.max(begin, end) - LEFT];
        this.actions.show(this.placeAt(Math.max(left, 0)), this.placeAt(right));
      } else {
        const { from, to } = this.store.state;
        this.actions.pan(((begin - end) / this.plot.width) * (to - from));
      }
      this.drawOverlay();
    });
    overlay.addEventListener("pointercancel", () => (this.brush = null));
    overlay.addEventListener("dblclick", () => this.actions.showAll());
    overlay.addEventListener(
      "wheel",
      (/** @type {WheelEvent} */ event) => {
        event.preventDefault();
        const { from, to } = this.store.state;
        const pixels = event.deltaMode === 1 ? 16 : 1;
        const across = event.shiftKey ? event.deltaY : event.deltaX;
        if (Math.abs(across) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
          this.actions.pan(((across * pixels) / this.plot.width) * (to - from));
        } else {
          const factor = Math.exp(event.deltaY * pixels * 0.002);
          this.actions.zoom(factor, this.placeAt(event.offsetX - LEFT));
        }
      },
      { passive: false },
    );
    overlay.addEventListener("focus", () => this.actions.activate(this.run));
  }

  /** The column of the picture under a pixel; -1 where there is none. */
  columnAt(/** @type {number} */ x) {
    if (!this.spans) return -1;
    const column = Math.floor(((x - LEFT) / this.plot.width) * this.spans.length);
    return column >= 0 && column < this.spans.length && this.spans.event[column] >= 0 ? column : -1;
  }

  pick(/** @type {number} */ x) {
    const near = this.crowds.find((crowd) => Math.abs(crowd.x + LEFT - x) < 5);
    const isOnMark = near && this.pointer && this.pointer.y < TOP;
    const column = this.columnAt(x);
    if (isOnMark) this.actions.goTo(this.run, foremost(near.moments).event);
    else if (column >= 0) this.actions.goTo(this.run, this.spans?.event[column] ?? 0);
  }

  showTip() {
    const { pointer, tip, spans } = this;
    const column = pointer ? this.columnAt(pointer.x) : -1;
    if (!pointer || column < 0 || !spans) {
      tip.hidden = true;
      return;
    }
    const { device } = this;
    const event = spans.event[column];
    const names = device.key(this.store.state.key).groups;
    /** @type {(Node | string)[]} */
    const rows = [
      make("strong", {}, `${formatBytes(spans.high[column])} live`),
      make("div", {}, `after event ${formatCount(event)}, ${this.timeText(event)}`),
      make("div", {}, `${formatBytes(spans.reserved[column])} reserved`),
    ];
    if (spans.shared[column] > 0) {
      rows.push(make("div", {}, `${formatBytes(spans.shared[column])} of it in shared memory`));
    }
    if (spans.low[column] < spans.high[column]) {
      const low = formatBytes(spans.low[column]);
      rows.push(make("div", { class: "faint" }, `down to ${low} within this pixel`));
    }
    const shares = Array.from({ length: spans.groups }, (_, g) => ({
      name: names[g] ?? `blocks under ${formatBytes(device.leastBytes)}, at most`,
      colour: groupColour(this.actions.colours(this.run)[g] ?? 11),
      bytes: spans.bytes[column * spans.groups + g],
    })).filter(({ bytes }) => bytes > 0);
    shares.sort((a, b) => b.bytes - a.bytes);
    for (const { name, colour, bytes } of shares.slice(0, 8)) {
      const square = make("span", { class: "swatch" });
      square.style.backgroundColor = colour;
      const label = make("span", { class: "name" }, shortName(name));
      rows.push(make("div", { class: "share" }, square, label, formatBytes(bytes)));
    }
    const near = this.crowds.find((crowd) => Math.abs(crowd.x + LEFT - pointer.x) < 5);
    for (const moment of near?.moments.slice(0, 4) ?? []) {
      rows.push(make("div", { class: "said" }, `${MARKS[moment.kind].sign} ${moment.text}`));
    }
    if (near && near.moments.length > 4) {
      rows.push(make("div", { class: "faint" }, `and ${near.moments.length - 4} more marks here`));
    }
    tip.replaceChildren(...rows);
    tip.hidden = false;
    const room = this.overlay.clientWidth;
    const isLeft = pointer.x > room / 2;
    tip.style.left = isLeft ? "" : `${pointer.x + 14}px`;
    tip.style.right = isLeft ? `${room - pointer.x + 14}px` : "";
  }

  timeText(/** @type {number} */ event) {
    const about = this.device.span > 1 ? "about " : "";
    return `${about}${formatTime(this.device.timeOf(event))}`;
  }
}
