// The card's address space at a moment: segments, the blocks in them, and the holes between blocks.

import { themeColour } from "../elements/colours.js";
import { fitCanvas, make } from "../elements/dom.js";
import { formatBytes, formatShare, plural } from "../elements/format.js";
import { gapsOf, sumOf } from "./gaps.js";
import { layOut, LAYOUTS } from "./layout.js";
import { drawStretches, outline } from "./picture.js";
import { PlacedBlocks } from "./placed_blocks.js";
import { tipRows } from "./tip.js";

/** @import { Actions } from "../actions.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Segment } from "../history/segments.js" */
/** @import { Store } from "../store.js" */
/** @import { Gap, GapKind } from "./gaps.js" */
/** @import { Layout } from "./layout.js" */
/** @import { Place } from "./placed_blocks.js" */

export class AddressMap {
  /**
   * @param {Run} run
   * @param {Store} store
   * @param {Actions} actions
   */
  constructor(run, store, actions) {
    this.run = run;
    this.store = store;
    this.actions = actions;
    this.canvas = make("canvas", {
      class: "map-canvas",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "address map",
      "aria-label":
        `Map of the card's address space ${run.letter}`.trim() +
        ": arrow keys pick the next block or the one before, PageDown and PageUp go from free piece to free piece",
    });
    this.scroller = make("div", { class: "scroller" }, this.canvas);
    this.tip = make("div", { class: "tip", role: "status", hidden: true });
    this.caption = make("p", { class: "caption" });
    this.scale = make("span", { class: "faint" });
    this.choice = make(
      "select",
      {
        "aria-label": "Layout of the map",
        onchange: () => this.store.set({ layout: this.choice.value }),
      },
      ...Object.entries(LAYOUTS).map(([value, name]) => make("option", { value }, name)),
    );
    this.name = "map";
    this.title = "Address space";
    this.controls = [this.scale, this.choice];
    this.element = make("div", { class: "map" }, this.caption, this.scroller, this.tip);
    /** @type {Layout | null} */
    this.layout = null;
    /** The gaps in each segment of the layout. @type {Gap[][]} */
    this.gaps = [];
    /** The blocks that are held at the moment. @type {PlacedBlocks | null} */
    this.placed = null;
    this.hovered = -1;
    /** The index of the free piece that the user has selected by keys; -1 for none. */
    this.gap = -1;
    this.listen();
  }

  draw() {
    const { device, held, moment } = this.run;
    this.choice.value = this.store.state.layout;
    if (held === null) return;
    const segments = device.segments.presentAt(moment);
    this.placed = new PlacedBlocks(held);
    const { placed } = this;
    this.gaps = segments.map((segment) => gapsOf(device, segment, placed));
    // The caption is filled before the map is laid out, because the map gets the remaining height.
    this.caption.replaceChildren(...this.describe(segments));
    const width = this.scroller.clientWidth;
    const height = this.scroller.clientHeight;
    if (width === 0) return;
    const others = this.actions.runs
      .filter((run) => run !== this.run)
      .map((run) => run.device.segments.presentAt(run.moment));
    this.layout = layOut(segments, others, this.store.state.layout, width - 2, height - 4);
    this.canvas.style.height = `${Math.max(this.layout.height + 2, 20)}px`;
    const { rowBytes } = this.layout;
    this.scale.textContent = rowBytes ? `full width: ${formatBytes(rowBytes)}` : "";
    this.paint();
  }

  paint() {
    const { context, width, height } = fitCanvas(this.canvas);
    const { run, layout, placed } = this;
    if (layout === null || placed === null) return;
    const { stretches } = layout;
    context.clearRect(0, 0, width, height);
    drawStretches(context, stretches, this.gaps, placed, run, this.actions);
    const picked = placed.rowOf(run.picked);
    outline(context, stretches, placed, picked, themeColour("text"), 2.5);
    outline(context, stretches, placed, this.hovered, themeColour("accent"), 2);
  }

  /** @param {Segment[]} segments */
  describe(segments) {
    const { device } = this.run;
    const { live, reserved, waiting } = this.actions.summary(this.run);
    const room = sumOf(this.gaps);
    const shared = segments.reduce((sum, segment) => sum + segment.shared, 0);
    const parts = [
      `${plural(segments.length, "segment")}, ${formatBytes(reserved)} reserved: ` +
        `${formatBytes(live)} live (${formatShare(live, reserved)})`,
    ];
    if (waiting > 0) parts.push(`${formatBytes(waiting)} waits for other streams (striped)`);
    if (shared > 0) parts.push(`${formatBytes(shared)} in shared memory (hatched)`);
    if (device.leastBytes > 0 && !this.run.source.isServed) {
      parts.push(`blocks under ${formatBytes(device.leastBytes)} look like fragments here`);
    }
    const { fragments, largest } = room;
    const pieces =
      fragments > 1 ? ` in ${plural(fragments, "piece")}, the largest ${formatBytes(largest)}` : "";
    const said = (/** @type {GapKind} */ kind, /** @type {string} */ text) =>
      make(
        "span",
        { class: "part" },
        make("span", { class: `swatch ${kind}`, "aria-hidden": "true" }),
        text,
      );
    return [
      make("span", { class: "part" }, `${parts.join(" · ")}.`),
      said("rounding", `${formatBytes(room.rounding)} rounding`),
      said("fragment", `${formatBytes(room.fragment)} fragments${pieces}`),
      said("free", `${formatBytes(room.free)} free, can go back`),
    ];
  }

  // The pointer and the keys

  at(/** @type {MouseEvent} */ event) {
    return this.placed?.at(this.layout?.stretches ?? [], event.offsetX, event.offsetY) ?? null;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      const here = this.at(event);
      const row = here?.row ?? -1;
      if (row !== this.hovered) {
        this.hovered = row;
        this.paint();
      }
      this.showTip(here, event.clientX, event.clientY);
    });
    const leave = () => {
      this.tip.hidden = true;
      this.hovered = -1;
      this.paint();
    };
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("blur", leave);
    canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const here = this.at(event);
      this.actions.pickBlock(this.run, here && here.row >= 0 ? here.row : -1);
      this.showTip(here, event.clientX, event.clientY); // for touch screens, where nothing hovers
    });
    canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const { run, placed } = this;
      /** @type {Record<string, number>} */
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      const step = steps[event.key];
      const gapStep = { PageDown: 1, PageUp: -1 }[event.key];
      if (gapStep !== undefined) {
        event.preventDefault();
        this.goToGap(gapStep);
        return;
      }
      if (step === undefined || !placed || placed.order.length === 0) return;
      event.preventDefault();
      event.stopPropagation();
      const place = placed.order.indexOf(placed.rowOf(run.picked));
      const next = place < 0 ? 0 : Math.min(Math.max(place + step, 0), placed.order.length - 1);
      this.actions.pickBlock(run, placed.order[next]);
    });
    canvas.addEventListener("focus", () => this.actions.activate(this.run));
  }

  /** Moves on by `step` free pieces, and shows the tip of the piece. */
  goToGap(/** @type {number} */ step) {
    /** @type {Place[]} */
    const places = [];
    for (const stretch of this.layout?.stretches ?? []) {
      for (const { kind, begin } of this.gaps[stretch.index] ?? []) {
        const isHere = begin >= stretch.begin && begin < stretch.end;
        if (kind !== "rounding" && isHere) places.push({ stretch, row: -1, byte: begin });
      }
    }
    if (places.length === 0) return;
    this.gap = Math.min(Math.max(this.gap + step, 0), places.length - 1);
    const { stretch, byte } = places[this.gap];
    const { scroller } = this;
    if (stretch.y < scroller.scrollTop) scroller.scrollTop = stretch.y;
    const bottom = stretch.y + stretch.height - scroller.clientHeight;
    if (bottom > scroller.scrollTop) scroller.scrollTop = bottom;
    const box = this.canvas.getBoundingClientRect();
    const scale = stretch.width / (stretch.end - stretch.begin);
    const x = box.left + stretch.x + (byte - stretch.begin) * scale;
    this.showTip(places[this.gap], x, box.top + stretch.y + stretch.height / 2);
  }

  /**
   * @param {Place | null} here
   * @param {number} x In pixels of the browser's window.
   * @param {number} y
   */
  showTip(here, x, y) {
    if (here === null || this.placed === null) {
      this.tip.hidden = true;
      return;
    }
    const rows = tipRows(this.run, this.actions, this.placed, this.gaps, here);
    this.tip.replaceChildren(...rows);
    this.tip.hidden = false;
    const box = this.element.getBoundingClientRect();
    const isLeft = x - box.left > box.width / 2;
    const isAbove = y - box.top > box.height / 2;
    this.tip.style.left = isLeft ? "" : `${x - box.left + 14}px`;
    this.tip.style.right = isLeft ? `${box.right - x + 14}px` : "";
    this.tip.style.top = isAbove ? "" : `${y - box.top + 14}px`;
    this.tip.style.bottom = isAbove ? `${box.bottom - y + 14}px` : "";
  }
}
