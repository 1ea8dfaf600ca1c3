// The memory that is live at the moment, by call stack. The flame graph has the outermost frames at
// the top. A frame's width shows the bytes that it and the frames that it called requested. The
// table has every frame with its totals.

import { themeColour } from "../elements/colours.js";
import { fitCanvas, make, refill } from "../elements/dom.js";
import { formatBytes, formatShare, packagePath, plural } from "../elements/format.js";
import { groupsOf } from "../history/groups.js";
import { FrameTree } from "../history/frame_tree.js";
import { layOutFrames } from "./layout.js";
import { frameTable } from "./table.js";

/** @import { Actions } from "../actions.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Store } from "../store.js" */
/** @import { Bar } from "./layout.js" */

const ROW = 20;

/** The ways to show the frames. */
export const FORMS = { graph: "flame graph", table: "totals of each frame" };

export class FlameGraph {
  /**
   * @param {Run} run
   * @param {Store} store
   * @param {Actions} actions
   */
  constructor(run, store, actions) {
    this.run = run;
    this.store = store;
    this.actions = actions;
    this.name = "flame";
    this.title = "Call stacks";
    this.canvas = make("canvas", {
      class: "flame-canvas",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "flame graph",
      "aria-label":
        `What is live by call stack ${run.letter}`.trim() +
        ": up and down to who called and what was called, left and right to frames beside it, " +
        "Enter makes a frame fill the width",
    });
    this.said = make("p", { class: "caption said", role: "status" });
    this.scroller = make("div", { class: "scroller" }, this.canvas);
    this.table = make("div", { class: "scroller", hidden: true });
    this.choice = make(
      "select",
      {
        "aria-label": "How call stacks are shown",
        onchange: () => this.store.set({ flameForm: this.choice.value }),
      },
      ...Object.entries(FORMS).map(([value, name]) => make("option", { value }, name)),
    );
    this.search = make(
      "button",
      { class: "link", onclick: () => this.searchFrame() },
      "search its blocks",
    );
    this.controls = [this.choice];
    this.element = make("div", { class: "flame" }, this.said, this.scroller, this.table);
    /** @type {FrameTree | null} */
    this.tree = null;
    /** @type {Bar[]} */
    this.bars = [];
    /** The node whose frame fills the width of the graph. */
    this.focus = 0;
    /** The node that the user chose; the text above the graph describes it. */
    this.chosen = 0;
    this.hovered = -1;
    this.listen();
  }

  draw() {
    const { run, actions, store } = this;
    const { held, device } = run;
    const isTable = store.state.flameForm === "table";
    this.choice.value = store.state.flameForm;
    this.scroller.hidden = isTable;
    this.table.hidden = !isTable;
    if (held === null || device.stacks === null) return;
    if (this.tree?.stacks !== device.stacks) this.focus = this.chosen = 0;
    const key = device.key(store.state.key);
    const groups = groupsOf(key, held);
    const found = actions.found(run);
    const { only } = store.state;
    this.tree = new FrameTree(
      device.stacks,
      held,
      (row) =>
        held.isLive(row, run.moment) &&
        (found === null || found.has(row)) &&
        (only === null || key.by === "tier" || key.groups[groups[row]] === only),
    );
    // A node without live blocks at this moment can neither fill the width nor be chosen.
    while (this.tree.blocks[this.focus] === 0 && this.focus !== 0)
      this.focus = this.tree.parent[this.focus];
    while (this.tree.blocks[this.chosen] === 0 && this.chosen !== 0)
      this.chosen = this.tree.parent[this.chosen];
    if (isTable) {
      refill(this.table, [frameTable(this.tree, (text) => this.searchFor(text))]);
      this.say(0);
      return;
    }
    const width = this.scroller.clientWidth;
    if (width === 0) return;
    this.bars = layOutFrames(this.tree, this.focus, width);
    const deepest = this.bars.reduce((most, { depth }) => Math.max(most, depth), 0);
    this.canvas.style.height = `${(deepest + 1) * ROW}px`;
    this.paint();
    this.say(this.chosen);
  }

  paint() {
    const { tree, bars } = this;
    if (tree === null || this.scroller.hidden) return;
    const { context, width, height } = fitCanvas(this.canvas);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const { node, depth, x, width: across } of bars) {
      const y = depth * ROW;
      const isAbove = node !== this.focus && tree.isWithin(this.focus, node);
      context.globalAlpha = isAbove ? 0.6 : 1;
      context.fillStyle = themeColour(this.colourOf(node));
      context.fillRect(x, y, Math.max(across - 1, 0.5), ROW - 1);
      context.globalAlpha = 1;
      if (across > 34) {
        context.save();
        context.beginPath();
        context.rect(x, y, across - 3, ROW);
        context.clip();
        context.fillStyle = themeColour("text");
        context.fillText(
          `${this.nameOf(node)}  ${formatBytes(tree.bytes[node])}`,
          x + 5,
          y + ROW / 2,
        );
        context.restore();
      }
      const isMarked = node === this.chosen || node === this.hovered;
      if (!isMarked) continue;
      context.strokeStyle = themeColour(node === this.hovered ? "accent" : "text");
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, Math.max(across - 3, 1), ROW - 3);
    }
  }

  colourOf(/** @type {number} */ node) {
    if (node === 0) return "frame-all";
    return this.frameOf(node).isProgram ? "frame-program" : "frame-library";
  }

  frameOf(/** @type {number} */ node) {
    const tree = /** @type {FrameTree} */ (this.tree);
    return tree.stacks.frame(tree.frame[node]);
  }

  /** Returns a short name of a node's frame: the file without its folders, line and function. */
  nameOf(/** @type {number} */ node) {
    if (node === 0) return "all";
    const { file, line, name } = this.frameOf(node);
    return line > 0 ? `${file.split(/[/\\]/).at(-1)}:${line} ${name}` : name;
  }

  /** Shows the text about a node: its frame, its live bytes and blocks. */
  say(/** @type {number} */ node) {
    const { tree, run } = this;
    if (tree === null) return;
    const bytes = tree.bytes[node];
    const figures = `${formatBytes(bytes)} (${formatShare(bytes, tree.bytes[0])}) in ${plural(tree.blocks[node], "block")}`;
    if (node === 0) {
      const without =
        tree.own[0] > 0 ? `, ${formatBytes(tree.own[0])} of it without a call stack` : "";
      this.said.replaceChildren(
        make(
          "span",
          { class: "part" },
          `${run.letter ? `${run.letter}: ` : ""}${figures} live${run.caveat()}${without}.`,
        ),
        make(
          "span",
          { class: "part" },
          make("span", { class: "swatch program" }),
          "the program and its libraries",
        ),
        make(
          "span",
          { class: "part" },
          make("span", { class: "swatch library" }),
          "PyTorch and Python",
        ),
      );
      return;
    }
    const { file, line, name } = this.frameOf(node);
    const own =
      tree.own[node] > 0
        ? `, ${formatBytes(tree.own[node])} of it asked for in this frame itself`
        : "";
    const place = line > 0 ? `${packagePath(file)}:${line}` : packagePath(file);
    this.said.replaceChildren(
      `${place} `,
      make("strong", {}, name),
      `: ${figures}${own}. `,
      this.search,
    );
  }

  searchFrame() {
    const { file, line, name } = this.frameOf(this.chosen);
    this.searchFor(`${packagePath(file)}:${line} ${name}`);
  }

  /** Searches for the blocks whose stack has a frame, wherever the frame was called from. */
  searchFor(/** @type {string} */ text) {
    this.store.set({ search: `"${text.replaceAll('"', "")}"` });
  }

  // The pointer and the keys

  nodeAt(/** @type {MouseEvent} */ event) {
    const depth = Math.floor(event.offsetY / ROW);
    const x = event.offsetX;
    const bar = this.bars.find((one) => one.depth === depth && one.x <= x && x < one.x + one.width);
    return bar?.node ?? -1;
  }

  choose(/** @type {number} */ node) {
    this.chosen = node;
    this.paint();
    this.say(node);
  }

  zoomTo(/** @type {number} */ node) {
    this.focus = this.chosen = node;
    this.draw();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      const node = this.nodeAt(event);
      if (node === this.hovered) return;
      this.hovered = node;
      this.paint();
      this.say(node < 0 ? this.chosen : node);
    });
    canvas.addEventListener("pointerleave", () => {
      if (this.hovered < 0) return;
      this.hovered = -1;
      this.paint();
      this.say(this.chosen);
    });
    canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      this.actions.activate(this.run);
      const node = this.nodeAt(event);
      if (node >= 0) this.zoomTo(node);
    });
    canvas.addEventListener("focus", () => this.actions.activate(this.run));
    canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (this.tree === null || !this.onKey(event.key, this.tree)) return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  /**
   * Handles a pressed key; returns whether the flame graph uses this key.
   * @param {string} key
   * @param {FrameTree} tree
   */
  onKey(key, tree) {
    const { chosen } = this;
    const siblings = chosen === 0 ? [0] : tree.called(tree.parent[chosen]);
    const beside = (/** @type {number} */ step) =>
      siblings[Math.min(Math.max(siblings.indexOf(chosen) + step, 0), siblings.length - 1)];
    switch (key) {
      case "ArrowUp":
        this.choose(tree.parent[chosen]);
        break;
      case "ArrowDown":
        this.choose(tree.called(chosen)[0] ?? chosen);
        break;
      case "ArrowLeft":
        this.choose(beside(-1));
        break;
      case "ArrowRight":
        this.choose(beside(1));
        break;
      case "Enter":
      case " ":
        this.zoomTo(chosen);
        return true;
      case "Home":
        this.zoomTo(0);
        return true;
      case "Escape":
        if (this.focus === 0) return false;
        this.zoomTo(0);
        return true;
      default:
        return false;
    }
    // The chosen frame must be visible, so the focus moves if the frame is not in the graph.
    if (!this.bars.some(({ node }) => node === this.chosen)) {
      this.focus = tree.isWithin(this.focus, this.chosen) ? this.chosen : tree.parent[this.chosen];
      this.draw();
    }
    const depth = this.bars.find(({ node }) => node === this.chosen)?.depth ?? 0;
    const { scroller } = this;
    if (depth * ROW < scroller.scrollTop) scroller.scrollTop = depth * ROW;
    const bottom = (depth + 1) * ROW - scroller.clientHeight;
    if (bottom > scroller.scrollTop) scroller.scrollTop = bottom;
    return true;
  }
}
