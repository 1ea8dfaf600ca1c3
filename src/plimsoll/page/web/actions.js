// The actions of a user on the page, and values that several parts of the page need.

import { pickedFrom } from "./history/blocks.js";
import { AXES } from "./history/axis.js";
import { tierOf } from "./history/groups.js";
import { parseQuery } from "./history/query.js";
import { summarize } from "./history/summary.js";
import { colourNumbers } from "./elements/colours.js";

/** @import { Blocks } from "./history/blocks.js" */
/** @import { Query } from "./history/query.js" */
/** @import { Run } from "./history/run.js" */
/** @import { Summary } from "./history/summary.js" */
/** @import { Store } from "./store.js" */

/** The user's actions, each of which changes the store, and values that parts of the page share. */
export class Actions {
  /**
   * @param {Run[]} runs
   * @param {Store} store
   */
  constructor(runs, store) {
    this.runs = runs;
    this.store = store;
    /** @type {Map<Run, { key: string, held: any, value: Summary }>} */
    this.summaries = new Map();
    /** @type {number[][]} */
    this.numbers = [];
    /** The grouping key and the devices for which `numbers` were computed. */
    this.coloursFor = "";
    /** @type {Map<Run, { of: string, query: Query, held: Blocks | null, rows: Set<number> | null }>} */
    this.queries = new Map();
  }

  get axis() {
    return AXES[this.store.state.axis];
  }

  get active() {
    return this.runs[this.store.state.panel] ?? this.runs[0];
  }

  /** Returns the length of the axis, which is the length of the longest run. */
  length() {
    return Math.max(...this.runs.map((run) => this.axis.length(run.device)));
  }

  /** Returns the bytes at the top of the timelines; all runs have the same scale. */
  highest() {
    const most = this.runs.map(({ device }) => Math.max(device.peakBytes(), device.segments.most));
    return Math.max(...most, 1) * 1.04;
  }

  /** Returns the colour number of each of a run's groups. */
  colours(/** @type {Run} */ run) {
    const { key } = this.store.state;
    const keys = this.runs.map(({ device }) => device.key(key));
    const made = this.runs.map(({ chosen }) => chosen).join() + key;
    if (this.coloursFor !== made) {
      this.coloursFor = made;
      this.numbers = colourNumbers(keys);
    }
    return this.numbers[this.runs.indexOf(run)];
  }

  groupName(/** @type {Run} */ run, /** @type {number} */ row) {
    const key = run.device.key(this.store.state.key);
    if (run.held === null) return "";
    if (key.by === "tier") return tierOf(run.held, row);
    return key.groups[this.summary(run).groups[row]];
  }

  /**
   * Returns the memory at a run's moment, in total and by group.
   * @returns {Summary}
   */
  summary(/** @type {Run} */ run) {
    const { device, held, moment } = run;
    const key = device.key(this.store.state.key);
    const made = `${key.name} ${run.chosen} ${moment} ${run.asked} ${held === null}`;
    const before = this.summaries.get(run);
    if (before?.key === made && before.held === held) return before.value;
    const value = summarize(run, key);
    this.summaries.set(run, { key: made, held, value });
    return value;
  }

  // The window: the part of the axis that the timelines show

  show(/** @type {number} */ from, /** @type {number} */ to) {
    const length = this.length();
    if (from > to) [from, to] = [to, from];
    const size = Math.min(Math.max(to - from, Math.min(this.axis.least, length)), length);
    if (to - from < size) from = (from + to - size) / 2;
    from = Math.min(Math.max(from, 0), length - size);
    this.store.set({ from, to: from + size });
  }

  showAll() {
    this.show(0, this.length());
  }

  pan(/** @type {number} */ distance) {
    const { from, to } = this.store.state;
    this.show(from + distance, to + distance);
  }

  /** Multiplies the window's length by a factor; the given place on the axis stays in place. */
  zoom(/** @type {number} */ factor, /** @type {number} */ place) {
    const { from, to } = this.store.state;
    const most = this.length() / (to - from);
    const least = Math.min(this.axis.least, this.length()) / (to - from);
    const by = Math.min(Math.max(factor, least), most);
    this.show(place - (place - from) * by, place + (to - place) * by);
  }

  /** Zooms around the moment if the window shows it, or else around the window's middle. */
  zoomAroundMoment(/** @type {number} */ factor) {
    const { device, moment } = this.active;
    const place = this.axis.placeOf(device, moment);
    const { from, to } = this.store.state;
    this.zoom(factor, place >= from && place <= to ? place : (from + to) / 2);
  }

  setAxis(/** @type {string} */ name) {
    if (name === this.store.state.axis) return;
    const { device } = this.active;
    const { from, to } = this.store.state;
    const isAll = to - from >= this.length();
    const events = [from, to].map((x) => this.axis.eventAt(device, x));
    this.store.set({ axis: name });
    if (isAll) this.showAll();
    else {
      const places = events.map((event) =>
        Math.min(Math.max(event, 0), device.events - 1),
      );
      this.show(...this.spread(places.map((event) => this.axis.placeOf(device, event))));
    }
  }

  /** @returns {[number, number]} */
  spread(/** @type {number[]} */ places) {
    return [places[0], Math.max(places[1], places[0] + this.axis.least)];
  }

  async setKey(/** @type {string} */ name) {
    await Promise.all(this.runs.flatMap((run) => run.devices.map((one) => one.loadKey(one.key(name).name))));
    this.store.set({ key: name, only: null });
  }

  // The active run, the moment, the picked block and the search

  activate(/** @type {Run} */ run) {
    this.store.set({ panel: this.runs.indexOf(run) });
  }

  async goTo(/** @type {Run} */ run, /** @type {number} */ event) {
    await run.goTo(event, () => this.store.touch("moment"));
    const place = this.axis.placeOf(run.device, run.moment);
    const { from, to } = this.store.state;
    if (place < from || place > to) this.pan(place - (from + to) / 2);
    this.store.touch("moment");
  }

  /** Picks one of the blocks that are held at the moment; row -1 picks none. */
  pickBlock(/** @type {Run} */ run, /** @type {number} */ row) {
    const { held } = run;
    this.activate(run);
    run.picked = row < 0 || held === null ? null : held.id(row);
    run.card = row < 0 || held === null ? null : pickedFrom(held, row);
    this.store.touch("picked");
  }

  /** Picks any block of the history, and goes to the moment when it was allocated. */
  async pickAnywhere(
    /** @type {Run} */ run,
    /** @type {Blocks} */ blocks,
    /** @type {number} */ row,
  ) {
    run.picked = blocks.id(row);
    run.card = pickedFrom(blocks, row);
    this.store.touch("picked");
    await this.goTo(run, Math.max(blocks.start[row], 0));
  }

  async setDevice(/** @type {Run} */ run, /** @type {number} */ chosen) {
    run.chosen = chosen;
    run.picked = run.card = null;
    this.store.touch("key");
    this.showAll();
    await this.goTo(run, run.device.peakEvent());
  }

  /** Goes to the next mark after the moment (direction 1), or to the last one before it (-1). */
  goToMark(/** @type {1 | -1} */ direction, /** @type {string | null} */ kind) {
    const run = this.active;
    const marks = run.device.moments.filter((one) => kind === null || one.kind === kind);
    const events = marks.map(({ event }) => event);
    const next =
      direction > 0
        ? events.find((event) => event > run.moment)
        : events.findLast((event) => event < run.moment);
    if (next !== undefined) this.goTo(run, next);
  }

  /** Returns the search for a run's blocks, parsed. */
  query(/** @type {Run} */ run) {
    return this.searched(run).query;
  }

  /** Returns the rows of the held blocks that the search finds; null if there is no search. */
  found(/** @type {Run} */ run) {
    const searched = this.searched(run);
    const { test } = searched.query;
    const { held } = run;
    if (test === null || held === null) return null;
    if (searched.held !== held || searched.rows === null) {
      const rows = new Set();
      for (let i = 0; i < held.length; i++) if (test(held, i)) rows.add(i);
      searched.held = held;
      searched.rows = rows;
    }
    return searched.rows;
  }

  searched(/** @type {Run} */ run) {
    const { device } = run;
    const of = `${run.chosen} ${device.stacks === null} ${this.store.state.search}`;
    let searched = this.queries.get(run);
    if (searched?.of !== of) {
      searched = { of, query: parseQuery(this.store.state.search, device), held: null, rows: null };
      this.queries.set(run, searched);
    }
    return searched;
  }
}
