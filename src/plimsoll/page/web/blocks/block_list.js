// The list of blocks: those live at the moment, or those of any time that a search finds. Only the
// rows in view exist as HTML elements.

import { make, nameOf, swatch } from "../elements/dom.js";
import { groupColour } from "../elements/colours.js";
import { groupsOf, tierOf } from "../history/groups.js";
import { formatAddress, formatBytes, formatCount } from "../elements/format.js";

/** @import { BlockColumn, Blocks } from "../history/blocks.js" */
/** @import { Test } from "../history/query.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Actions } from "../actions.js" */
/** @import { Store } from "../store.js" */


/**
 * @typedef {object} ListColumn
 * @property {BlockColumn | "group" | "line"} name
 * @property {string} title
 * @property {string} style The CSS class of its cells.
 * @property {number} first The direction of the first click's sort: 1 ascending, -1 descending.
 */

/** @type {ListColumn[]} */
const COLUMNS = [
  { name: "size", title: "Size", style: "number", first: -1 },
  { name: "group", title: "", style: "key", first: 1 },
  { name: "address", title: "Address", style: "address", first: 1 },
  { name: "start", title: "Allocated", style: "number time", first: -1 },
  { name: "end", title: "Freed", style: "number time", first: 1 },
  { name: "line", title: "Source line", style: "line", first: 1 },
];

export class BlockList {
  /**
   * @param {Run} run
   * @param {Store} store
   * @param {Actions} actions
   */
  constructor(run, store, actions) {
    this.run = run;
    this.store = store;
    this.actions = actions;
    /** @type {ListColumn["name"]} */
    this.sortedBy = "size";
    this.direction = -1;
    /** The rows of `blocks` that are listed, in the order of the list. @type {number[]} */
    this.rows = [];
    /** @type {Blocks | null} */
    this.blocks = null;
    this.groups = new Uint8Array(0);
    this.isEverywhere = false;
    this.asked = 0;
    /**
     * What the last search through the whole history found.
     * @type {{ sought: string, blocks: Blocks } | null}
     */
    this.found = null;
    /** The height of a row in pixels; on touch screens rows are higher. */
    this.rowHeight = matchMedia("(pointer: coarse)").matches ? 40 : 24;
    this.count = make("span", { class: "count", role: "status" });
    this.everywhere = make("input", {
      type: "checkbox",
      id: `everywhere${run.letter}`,
      onchange: () => this.store.set({ isEverywhere: this.everywhere.checked }),
    });
    this.titles = COLUMNS.map((column) =>
      make(
        "button",
        { class: `cell ${column.style}`, role: "columnheader", onclick: () => this.sortBy(column) },
        column.title,
      ),
    );
    this.space = make("div", { class: "space" });
    this.body = make(
      "div",
      {
        class: "rows",
        tabindex: "0",
        role: "rowgroup",
        "aria-label": "Blocks; arrow keys choose one",
        onscroll: () => this.fill(),
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.onKey(event),
        onfocus: () => this.actions.activate(this.run),
      },
      this.space,
    );
    this.element = make(
      "section",
      { class: "card list", "aria-label": "Blocks" },
      make(
        "header",
        {},
        make("h2", {}, "Blocks"),
        this.count,
        make(
          "label",
          { for: this.everywhere.id, class: "everywhere" },
          this.everywhere,
          "search the whole history",
        ),
      ),
      make(
        "div",
        { class: "table", role: "grid", "aria-label": "Blocks" },
        make("div", { class: "titles", role: "row" }, ...this.titles),
        this.body,
      ),
    );
  }

  /** Lists the live blocks that match the search, or searches the whole history. */
  async draw() {
    const { run } = this;
    const { state } = this.store;
    this.everywhere.checked = state.isEverywhere;
    const { test } = this.actions.query(run);
    const asked = ++this.asked;
    if (!state.isEverywhere || test === null || run.source.inPage === null) {
      if (run.held !== null) this.list(run.held, test, false);
      return;
    }
    const sought = `${run.chosen} ${state.search}`;
    if (this.found?.sought !== sought) {
      this.count.textContent = "searching …";
      const blocks = await run.source.find(test);
      if (asked !== this.asked) return; // a later call of `draw` replaces this one
      this.found = { sought, blocks };
    }
    this.list(this.found.blocks, null, true);
  }

  /**
   * @param {Blocks} blocks
   * @param {Test | null} test
   * @param {boolean} isEverywhere Whether `blocks` are of the whole history.
   */
  list(blocks, test, isEverywhere) {
    const { run } = this;
    const { state } = this.store;
    this.blocks = blocks;
    this.isEverywhere = isEverywhere;
    const key = run.device.key(state.key);
    this.groups = groupsOf(key, blocks);
    this.rows = [];
    let bytes = 0;
    let all = 0;
    for (let i = 0; i < blocks.length; i++) {
      if (!isEverywhere && !blocks.isLive(i, run.moment)) continue;
      all++;
      if (test !== null && !test(blocks, i)) continue;
      if (state.only !== null && key.by !== "tier" && key.groups[this.groups[i]] !== state.only) {
        continue;
      }
      this.rows.push(i);
      bytes += blocks.size[i];
    }
    const within = this.rows.length === all ? "" : ` of ${formatCount(all)}`;
    const those = isEverywhere ? "of any time" : "live";
    this.count.textContent =
      `${formatCount(this.rows.length)}${within} ${those}, ${formatBytes(bytes)}${run.caveat()}`;
    this.element.classList.toggle("by-line", key.name === "line");
    this.titles[1].textContent =
      key.name === "size" ? "Class" : key.name === "line" ? "" : key.title;
    this.sort();
    this.body.scrollTop = Math.min(this.body.scrollTop, this.rows.length * this.rowHeight);
    this.fill();
  }

  /** @param {ListColumn} column */
  sortBy(column) {
    this.direction = this.sortedBy === column.name ? -this.direction : column.first;
    this.sortedBy = column.name;
    this.sort();
    this.fill();
  }

  sort() {
    const blocks = /** @type {Blocks} */ (this.blocks);
    const { device } = this.run;
    const { groups } = this;
    /** @type {ArrayLike<number>} */
    let by = blocks.size;
    if (this.sortedBy === "line") {
      const order = device.stacks?.lineOrder() ?? [];
      by = Array.from(blocks.stack, (stack) => order[device.stacks?.lineIndex(stack) ?? 0]);
    } else if (this.sortedBy === "group") by = groups;
    else by = blocks.columns[this.sortedBy];
    const sign = this.direction;
    this.rows.sort((a, b) => sign * (by[a] - by[b]) || blocks.size[b] - blocks.size[a] || a - b);
    COLUMNS.forEach((column, i) => {
      const isSorted = column.name === this.sortedBy;
      const order = !isSorted ? "none" : sign > 0 ? "ascending" : "descending";
      this.titles[i].setAttribute("aria-sort", order);
    });
  }

  /** Makes the elements of the rows that are in view. */
  fill() {
    const { blocks, rows, body, space } = this;
    if (blocks === null) return;
    space.style.height = `${rows.length * this.rowHeight}px`;
    const first = Math.max(Math.floor(body.scrollTop / this.rowHeight) - 4, 0);
    const last = Math.min(first + Math.ceil(body.clientHeight / this.rowHeight) + 8, rows.length);
    const shown = [];
    for (let place = first; place < last; place++) shown.push(this.row(place));
    space.replaceChildren(...shown);
    if (rows.length === 0) space.append(make("p", { class: "empty" }, "No block is like this."));
  }

  /** @param {number} place */
  row(place) {
    const { run } = this;
    const blocks = /** @type {Blocks} */ (this.blocks);
    const i = this.rows[place];
    const { device } = run;
    const group = this.groups[i];
    const tierGroup = blocks.shared[i] > 0 ? 1 : 0;
    const key = device.key(this.store.state.key);
    const number = key.by === "tier" ? tierGroup : group;
    const line = device.stacks?.line(blocks.stack[i]) ?? "";
    const texts = [
      formatBytes(blocks.size[i]),
      null,
      formatAddress(device.origin, blocks.address[i]),
      blocks.start[i] < 0 ? "before" : formatCount(blocks.start[i]),
      blocks.end[i] >= device.events ? "never" : formatCount(blocks.end[i]),
    ];
    const cells = COLUMNS.map((column, c) => {
      if (column.name === "line") {
        const cell = nameOf("cell line", line);
        cell.setAttribute("role", "gridcell");
        return cell;
      }
      if (c !== 1) return make("span", { class: `cell ${column.style}`, role: "gridcell" }, texts[c]);
      const colour = groupColour(this.actions.colours(run)[number] ?? 11);
      // If the groups are source lines, the name is left out here: the last column shows it.
      const name =
        key.by === "tier" ? tierOf(blocks, i) : key.name === "line" ? "" : key.groups[number];
      return make("span", { class: `cell ${column.style}`, role: "gridcell" }, swatch(colour), name);
    });
    const isPicked = blocks.id(i) === run.picked;
    const row = make(
      "div",
      {
        class: isPicked ? "row picked" : "row",
        role: "row",
        title: line,
        "aria-rowindex": place + 1,
        "aria-selected": isPicked,
        onclick: () => this.pick(place),
      },
      ...cells,
    );
    row.style.top = `${place * this.rowHeight}px`;
    row.style.height = `${this.rowHeight}px`;
    return row;
  }

  /** @param {number} place */
  pick(place) {
    const blocks = this.blocks;
    if (blocks === null || place < 0 || place >= this.rows.length) return;
    if (this.isEverywhere) this.actions.pickAnywhere(this.run, blocks, this.rows[place]);
    else this.actions.pickBlock(this.run, this.rows[place]);
    // The block's card is drawn first, as it takes room from the list.
    requestAnimationFrame(() => this.scrollTo(place));
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const page = Math.max(Math.floor(this.body.clientHeight / this.rowHeight) - 1, 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -1e9, End: 1e9 };
    const step = /** @type {Record<string, number>} */ (steps)[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const { blocks, rows } = this;
    const now = blocks === null ? -1 : rows.findIndex((i) => blocks.id(i) === this.run.picked);
    this.pick(now < 0 ? 0 : Math.min(Math.max(now + step, 0), rows.length - 1));
  }

  /** Scrolls the list until a row is in view. */
  scrollTo(/** @type {number} */ place) {
    const top = place * this.rowHeight;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    const bottom = top + this.rowHeight - this.body.clientHeight;
    if (bottom > this.body.scrollTop) this.body.scrollTop = bottom;
  }
}
