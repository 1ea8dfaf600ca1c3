// The card's address space at a moment: segments, the blocks in them, and the holes between.

import { groupColour, themeColour } from "../elements/colours.js";
import { groupsOf } from "../history/groups.js";
import { fitCanvas, make } from "../elements/dom.js";
import { formatAddress, formatBytes, formatShare, plural } from "../elements/format.js";
import { layOut, LAYOUTS } from "./layout.js";
import { firstAbove } from "../history/binary_search.js";

/** @import { Blocks } from "../history/blocks.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Segment } from "../history/segments.js" */
/** @import { Actions } from "../actions.js" */
/** @import { Store } from "../store.js" */
/** @import { Layout, Stretch } from "./layout.js" */

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
        ": arrow keys pick the next block or the one before",
    });
    this.scroller = make("div", { class: "map-scroller" }, this.canvas);
    this.tip = make("div", { class: "tip", hidden: true });
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
    this.element = make(
      "section",
      { class: "card map", "aria-label": "Address space" },
      make("header", {}, make("h2", {}, "Address space"), this.scale, this.choice),
      this.caption,
      this.scroller,
      this.tip,
    );
    /** @type {Layout | null} */
    this.layout = null;
    /** Rows of `run.held`, by address. @type {number[]} */
    this.order = [];
    this.hovered = -1;
    this.listen();
  }

  draw() {
    const { device, held, moment } = this.run;
    this.choice.value = this.store.state.layout;
    if (held === null) return;
    const segments = device.segments.presentAt(moment);
    // Before the map is laid out: it takes what the caption leaves.
    this.caption.textContent = this.describe(segments);
    const width = this.scroller.clientWidth;
    const height = this.scroller.clientHeight;
    if (width === 0) return;
    const others = this.actions.runs
      .filter((run) => run !== this.run)
      .map((run) => run.device.segments.presentAt(run.moment));
    this.layout = layOut(segments, others, this.store.state.layout, width - 2, height - 4);
    this.canvas.style.height = `${Math.max(this.layout.height + 2, 20)}px`;
    this.sortBlocks();
    const { rowBytes } = this.layout;
    this.scale.textContent = rowBytes ? `full width: ${formatBytes(rowBytes)}` : "";
    this.paint();
  }

  sortBlocks() {
    const blocks = /** @type {Blocks} */ (this.run.held);
    this.order = Array.from({ length: blocks.length }, (_, i) => i);
    this.order.sort((a, b) => blocks.address[a] - blocks.address[b]);
    this.addresses = this.order.map((i) => blocks.address[i]);
  }

  paint() {
    const { context, width, height } = fitCanvas(this.canvas);
    const { run, layout } = this;
    const blocks = run.held;
    if (blocks === null || layout === null) return;
    context.clearRect(0, 0, width, height);
    const { state } = this.store;
    const key = run.device.key(state.key);
    const groups = groupsOf(key, blocks);
    const numbers = this.actions.colours(run);
    const colours = numbers.map(groupColour);
    const found = this.actions.found(run);
    const [dimmed, waiting] = [themeColour("dimmed"), themeColour("waiting")];
    const [hole, edge] = [themeColour("hole"), themeColour("segment-edge")];
    const veil = themeColour("shared-hatch");
    for (const stretch of layout.stretches) {
      const { segment, x, y, width: across, height: down } = stretch;
      context.fillStyle = hole;
      context.fillRect(x, y, across, down);
      const scale = across / (stretch.end - stretch.begin);
      this.eachBlock(stretch, (i, begin, end) => {
        const left = x + (begin - stretch.begin) * scale;
        const size = (end - begin) * scale;
        const isLive = blocks.isLive(i, run.moment);
        const isShown =
          (state.only === null || key.groups[groups[i]] === state.only) &&
          (found === null || found.has(i));
        if (!isLive) context.fillStyle = waiting;
        else if (!isShown) context.fillStyle = dimmed;
        else if (key.by === "tier") context.fillStyle = colours[0];
        else context.fillStyle = colours[groups[i]];
        // A gap between neighbours, where there is room for one.
        context.fillRect(left, y, Math.max(size - (size > 3 ? 1 : 0), 0.4), down);
        if (blocks.shared[i] > 0 && isLive) {
          const part = (size * blocks.shared[i]) / blocks.size[i];
          if (key.by === "tier" && isShown) {
            context.fillStyle = colours[1];
            context.fillRect(left + size - part, y, part - (size > 3 ? 1 : 0), down);
          }
          this.hatch(context, left + size - part, y, part, down, veil);
        }
        if (!isLive && size > 3) this.hatch(context, left, y, size - 1, down, hole);
        if (size > 62 && down >= 13 && isLive && isShown) {
          context.font = "10px system-ui, sans-serif";
          context.textBaseline = "middle";
          context.textAlign = "left";
          context.lineWidth = 2.5;
          context.lineJoin = "round";
          context.strokeStyle = themeColour("halo");
          context.fillStyle = themeColour("on-group");
          const text = formatBytes(blocks.size[i]);
          context.strokeText(text, left + 5, y + down / 2);
          context.fillText(text, left + 5, y + down / 2);
        }
      });
      context.strokeStyle = edge;
      context.lineWidth = 1;
      context.setLineDash(segment.isPrivate ? [3, 2] : []);
      context.strokeRect(x + 0.5, y + 0.5, Math.max(across - 1, 0.5), down - 1);
      context.setLineDash([]);
      if (segment.shared > 0) {
        context.fillStyle = themeColour("shared-line");
        const part = across * (segment.shared / segment.size);
        context.fillRect(x + across - part, y + down - 2, part, 2);
      }
    }
    this.outline(context, this.rowOfPicked(), themeColour("text"), 2.5);
    if (this.hovered >= 0) this.outline(context, this.hovered, themeColour("accent"), 2);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   * @param {string} colour
   */
  hatch(context, x, y, width, height, colour) {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = colour;
    context.lineWidth = 1.2;
    context.beginPath();
    for (let at = x - height - ((x - height) % 5); at < x + width; at += 5) {
      context.moveTo(at, y + height);
      context.lineTo(at + height, y);
    }
    context.stroke();
    context.restore();
  }

  /** The row of `run.held` that is picked; -1 if it was not held. */
  rowOfPicked() {
    const { held, picked } = this.run;
    if (held === null || picked === null) return -1;
    for (let i = 0; i < held.length; i++) if (held.id(i) === picked) return i;
    return -1;
  }

  /**
   * The blocks in a stretch, and which of the segment's bytes of it they take.
   * @param {Stretch} stretch
   * @param {(row: number, begin: number, end: number) => void} visit
   */
  eachBlock(stretch, visit) {
    const blocks = /** @type {Blocks} */ (this.run.held);
    const addresses = /** @type {number[]} */ (this.addresses);
    const base = stretch.segment.address;
    let place = Math.max(firstAbove(addresses, base + stretch.begin) - 1, 0);
    for (; place < this.order.length; place++) {
      const row = this.order[place];
      const begin = Math.max(blocks.address[row] - base, stretch.begin);
      const end = Math.min(blocks.address[row] - base + blocks.size[row], stretch.end);
      if (blocks.address[row] - base >= stretch.end) break;
      if (end > begin) visit(row, begin, end);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} row
   * @param {string} colour
   * @param {number} lineWidth
   */
  outline(context, row, colour, lineWidth) {
    if (row < 0 || this.layout === null) return;
    context.strokeStyle = colour;
    context.lineWidth = lineWidth;
    for (const stretch of this.layout.stretches) {
      this.eachBlock(stretch, (i, begin, end) => {
        if (i !== row) return;
        const scale = stretch.width / (stretch.end - stretch.begin);
        const left = stretch.x + (begin - stretch.begin) * scale;
        const across = Math.max((end - begin) * scale, 3);
        context.strokeRect(left, stretch.y + 1, across, stretch.height - 2);
      });
    }
  }

  /** @param {Segment[]} segments */
  describe(segments) {
    const { device } = this.run;
    const { live, reserved, waiting } = this.actions.summary(this.run);
    const rest = reserved - live - waiting;
    const shared = segments.reduce((sum, segment) => sum + segment.shared, 0);
    const parts = [
      `${plural(segments.length, "segment")}, ${formatBytes(reserved)} reserved: ` +
        `${formatBytes(live)} live (${formatShare(live, reserved)})`,
    ];
    if (waiting > 0) parts.push(`${formatBytes(waiting)} waits for other streams (striped)`);
    parts.push(`${formatBytes(rest)} in holes and rounding`);
    if (shared > 0) parts.push(`${formatBytes(shared)} in shared memory (hatched)`);
    if (device.leastBytes > 0 && !this.run.source.isServed) {
      parts.push(`blocks under ${formatBytes(device.leastBytes)} look like holes here`);
    }
    return `${parts.join(" · ")}.`;
  }

  // The pointer and the keys

  /** @returns {{ stretch: Stretch, row: number, byte: number } | null} */
  at(/** @type {number} */ x, /** @type {number} */ y) {
    for (const stretch of this.layout?.stretches ?? []) {
      const isIn =
        x >= stretch.x && x < stretch.x + Math.max(stretch.width, 1) &&
        y >= stretch.y && y < stretch.y + stretch.height;
      if (!isIn) continue;
      const scale = stretch.width / (stretch.end - stretch.begin);
      const byte = stretch.begin + (x - stretch.x) / scale;
      let row = -1;
      let distance = 2 / scale;
      this.eachBlock(stretch, (i, begin, end) => {
        const away = byte < begin ? begin - byte : byte > end ? byte - end : 0;
        if (away < distance || away === 0) [row, distance] = [i, away];
      });
      return { stretch, row, byte };
    }
    return null;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      const here = this.at(event.offsetX, event.offsetY);
      const row = here?.row ?? -1;
      if (row !== this.hovered) {
        this.hovered = row;
        this.paint();
      }
      this.showTip(here, event);
    });
    canvas.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
      this.hovered = -1;
      this.paint();
    });
    canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const here = this.at(event.offsetX, event.offsetY);
      this.actions.pickBlock(this.run, here && here.row >= 0 ? here.row : -1);
    });
    canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step === undefined || this.order.length === 0) return;
      event.preventDefault();
      event.stopPropagation();
      const place = this.order.indexOf(this.rowOfPicked());
      const next = place < 0 ? 0 : Math.min(Math.max(place + step, 0), this.order.length - 1);
      this.actions.pickBlock(this.run, this.order[next]);
    });
    canvas.addEventListener("focus", () => this.actions.activate(this.run));
  }

  /**
   * @param {ReturnType<AddressMap["at"]>} here
   * @param {PointerEvent} event
   */
  showTip(here, event) {
    const blocks = this.run.held;
    if (here === null || blocks === null) {
      this.tip.hidden = true;
      return;
    }
    const { device } = this.run;
    const { segment } = here.stretch;
    const rows = [];
    if (here.row >= 0) {
      const i = here.row;
      rows.push(make("strong", {}, formatBytes(blocks.size[i])));
      const state = blocks.isLive(i, this.run.moment) ? "" : "freed, waits for other streams; ";
      rows.push(make("div", {}, `${state}at ${formatAddress(device.origin, blocks.address[i])}`));
      if (this.store.state.key !== "line") {
        rows.push(make("div", {}, this.actions.groupName(this.run, i)));
      }
      if (blocks.shared[i] > 0) {
        rows.push(make("div", {}, `${formatBytes(blocks.shared[i])} of it in shared memory`));
      }
      rows.push(make("div", { class: "faint" }, device.stacks?.line(blocks.stack[i]) ?? ""));
    } else {
      const [from, to] = this.holeAt(here.stretch.segment, here.byte);
      rows.push(make("strong", {}, `hole of ${formatBytes(to - from)}`));
      rows.push(make("div", {}, `at ${formatAddress(device.origin, segment.address + from)}`));
    }
    const kind = segment.isPrivate ? "private pool, " : "";
    const pieces = segment.pieces > 1 ? ` in ${plural(segment.pieces, "piece")}` : "";
    const text = `segment of ${formatBytes(segment.size)}${pieces}, ${kind}stream ${device.streams[segment.stream] ?? segment.stream}`;
    rows.push(make("div", { class: "faint" }, text));
    this.tip.replaceChildren(...rows);
    this.tip.hidden = false;
    const box = this.element.getBoundingClientRect();
    const isLeft = event.clientX - box.left > box.width / 2;
    const isAbove = event.clientY - box.top > box.height / 2;
    this.tip.style.left = isLeft ? "" : `${event.clientX - box.left + 14}px`;
    this.tip.style.right = isLeft ? `${box.right - event.clientX + 14}px` : "";
    this.tip.style.top = isAbove ? "" : `${event.clientY - box.top + 14}px`;
    this.tip.style.bottom = isAbove ? `${box.bottom - event.clientY + 14}px` : "";
  }

  /**
   * The hole around a byte of a segment.
   * @param {Segment} segment
   * @param {number} byte
   */
  holeAt(segment, byte) {
    const blocks = /** @type {Blocks} */ (this.run.held);
    let [from, to] = [0, segment.size];
    for (const row of this.order) {
      const begin = blocks.address[row] - segment.address;
      const end = begin + blocks.size[row];
      if (end <= byte && end > from) from = end;
      if (begin > byte && begin < to) to = begin;
    }
    return [from, to];
  }
}
