// The page: reads what it carries, makes its parts, and keeps them in step.

import { AXES } from "./axis.js";
import { BlockCard, pickedFrom } from "./block_card.js";
import { BlockList } from "./block_list.js";
import { colourNumbers } from "./colours.js";
import { bytesByGroup, groupsOf, tierOf } from "./device.js";
import { make } from "./dom.js";
import { Help } from "./help.js";
import { listenToKeys } from "./keys.js";
import { Legend } from "./legend.js";
import { AddressMap } from "./map.js";
import { Notes } from "./notes.js";
import { parseQuery } from "./query.js";
import { Run } from "./run.js";
import { Store } from "./state.js";
import { Strip } from "./strip.js";
import { applyTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { Toolbar } from "./toolbar.js";

/**
 * What is held at a moment.
 * @typedef {object} Summary
 * @property {number} live Bytes.
 * @property {number} reserved
 * @property {number} shared
 * @property {number} waiting Bytes that are freed, but other streams may still use them.
 * @property {number[]} bytes What is live, by group; of blocks that are not in the page, at last.
 * @property {Uint8Array} groups The group of each block.
 * @property {boolean} isAtMost Whether there may be less than that.
 */

/** What can be done on the page, and what can be asked about it. */
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
    /** What `numbers` are of. */
    this.coloursFor = "";
  }

  get axis() {
    return AXES[this.store.state.axis];
  }

  get active() {
    return this.runs[this.store.state.panel] ?? this.runs[0];
  }

  /** The length of the axis: that of the longest run. */
  length() {
    return Math.max(...this.runs.map((run) => this.axis.length(run.device)));
  }

  /** The bytes at the top of the timelines: all runs have one scale. */
  highest() {
    const most = this.runs.map(({ device }) => Math.max(device.peakBytes(), device.segments.most));
    return Math.max(...most, 1) * 1.04;
  }

  /** The colours of the groups of a run, as numbers. */
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

  /**
   * "function:line file" for a source line, so that what tells lines apart comes first; all other
   * names as they are.
   */
  shortName(/** @type {string} */ name) {
    const match = /^(.*):(\d+) (.*)$/.exec(name);
    if (match === null) return name;
    const file = match[1].split(/[/\\]/).at(-1);
    return `${match[3]}:${match[2]} ${file}`;
  }

  groupName(/** @type {Run} */ run, /** @type {number} */ row) {
    const key = run.device.key(this.store.state.key);
    if (run.held === null) return "";
    if (key.by === "tier") return tierOf(run.held, row);
    return key.groups[this.summary(run).groups[row]];
  }

  /**
   * What is held at a run's moment.
   * @returns {Summary}
   */
  summary(/** @type {Run} */ run) {
    const { device, held, moment } = run;
    const key = device.key(this.store.state.key);
    const made = `${key.name} ${run.chosen} ${moment} ${run.asked} ${held === null}`;
    const before = this.summaries.get(run);
    if (before?.key === made && before.held === held) return before.value;
    const value = this.summarize(run, key);
    this.summaries.set(run, { key: made, held, value });
    return value;
  }

  /**
   * @param {Run} run
   * @param {import("./device.js").Key} key
   * @returns {Summary}
   */
  summarize(run, key) {
    const { device, held, moment } = run;
    const reserved = device.segments.reserved(moment);
    if (held === null) return this.summaryFromOverview(run, key, reserved);
    const bytes = bytesByGroup(key, held, moment);
    let [shared, waiting] = [0, 0];
    for (let i = 0; i < held.length; i++) {
      if (held.isLive(i, moment)) shared += held.shared[i];
      else waiting += held.size[i];
    }
    const all = Array.from(bytes);
    const isAtMost = device.leftOut !== null && !run.source.isServed;
    if (isAtMost) all.push(device.leftOut?.high[Math.floor(moment / device.span)] ?? 0);
    const live = all.reduce((a, b) => a + b, 0);
    const groups = groupsOf(key, held);
    return { live, reserved, shared, waiting, bytes: all, groups, isAtMost };
  }

  /** While the blocks are on their way: the peak, which the page opens at, is in the overview. */
  summaryFromOverview(
    /** @type {Run} */ { device, moment },
    /** @type {import("./device.js").Key} */ key,
    /** @type {number} */ reserved,
  ) {
    const span = Math.floor(moment / device.span);
    const bytes = (device.bytesByKey.get(key.name) ?? []).map((column) => column[span]);
    const shared = device.sharedHigh[span];
    const groups = new Uint8Array(0);
    const live = device.high[span];
    return { live, reserved, shared, waiting: 0, bytes, groups, isAtMost: false };
  }

  // Where the window is

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

  /** Zoom around a place, which stays where it is; by less than 1 to see more of it. */
  zoom(/** @type {number} */ factor, /** @type {number} */ place) {
    const { from, to } = this.store.state;
    const most = this.length() / (to - from);
    const least = Math.min(this.axis.least, this.length()) / (to - from);
    const by = Math.min(Math.max(factor, least), most);
    this.show(place - (place - from) * by, place + (to - place) * by);
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

  // What is looked at

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

  /** Pick one of the blocks that are held at the moment; -1 for none. */
  pickBlock(/** @type {Run} */ run, /** @type {number} */ row) {
    const { held } = run;
    this.activate(run);
    run.picked = row < 0 || held === null ? null : held.id(row);
    run.card = row < 0 || held === null ? null : pickedFrom(held, row);
    this.store.touch("picked");
  }

  /** Pick a block of any time, and go to where it was allocated. */
  async pickAnywhere(
    /** @type {Run} */ run,
    /** @type {import("./blocks.js").Blocks} */ blocks,
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

  /** To the next mark after the moment, or the one before it. */
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

  /** The test of the search, or null. */
  test(/** @type {Run} */ run) {
    return parseQuery(this.store.state.search, run.device);
  }

  /** The rows of what is held that the search finds, or null where there is no search. */
  found(/** @type {Run} */ run) {
    const test = this.test(run);
    if (test === null || run.held === null) return null;
    const rows = new Set();
    for (let i = 0; i < run.held.length; i++) if (test(run.held, i)) rows.add(i);
    return rows;
  }
}

async function start() {
  const packed = JSON.parse(document.getElementById("data")?.textContent ?? "");
  const isPair = packed.runs.length > 1;
  /** @type {Run[]} */
  const runs = [];
  for (const [i, one] of packed.runs.entries()) {
    const number = runs.reduce((sum, run) => sum + run.devices.length, 0);
    runs.push(await Run.load(one, isPair ? "AB"[i] : "", number, packed.served));
  }
  const store = new Store({
    key: runs[0].device.key("category").name,
    axis: "events",
    from: 0,
    to: 1,
    isFitted: false,
    only: null,
    layout: "packed",
    theme: "auto",
    search: "",
    isEverywhere: false,
    panel: 0,
  });
  const actions = new Actions(runs, store);
  document.title = `${runs.map(({ name }) => name).join(" and ")} · plimsoll view`;
  applyTheme(store.state.theme);
  await actions.setKey(store.state.key);
  actions.showAll();

  const help = new Help();
  const toolbar = new Toolbar(runs, store, actions, help);
  const legend = new Legend(runs, store, actions);
  const notes = new Notes(runs);
  const timelines = runs.map((run) => new Timeline(run, store, actions));
  const strips = runs.map((run) => new Strip(run, store, actions));
  const maps = runs.map((run) => new AddressMap(run, store, actions));
  const lists = runs.map((run) => new BlockList(run, store, actions));
  const cards = runs.map((run) => new BlockCard(run, store, actions));
  const times = runs.map((run, i) =>
    make(
      "section",
      { class: "card time", "aria-label": `Timeline ${run.letter}`.trim() },
      isPair ? make("header", {}, make("h2", {}, `${run.letter}: ${run.name}`)) : null,
      timelines[i].element,
      strips[i].element,
    ),
  );
  const details = runs.map((_, i) =>
    make("div", { class: "details" }, maps[i].element, make("div", { class: "side" }, lists[i].element, cards[i].element)),
  );
  document.body.classList.toggle("pair", isPair);
  const main = make("main", {}, ...times, legend.element, ...details);
  document.body.append(
    toolbar.element,
    main,
    notes.element,
    help.element,
  );

  const drawAll = (/** @type {Set<string>} */ changed) => {
    const has = (/** @type {string[]} */ ...names) => names.some((name) => changed.has(name));
    const isNew = has("key", "theme", "size", "all");
    if (has("theme")) applyTheme(store.state.theme);
    if (isNew || has("search", "axis", "panel", "isFitted")) toolbar.draw();
    runs.forEach((_, i) => {
      if (isNew || has("from", "to", "axis", "isFitted", "only", "window")) {
        timelines[i].draw();
        strips[i].draw();
      } else if (has("moment", "picked")) timelines[i].drawOverlay();
      if (isNew || has("moment", "only", "layout", "search")) maps[i].draw();
      else if (has("picked")) maps[i].paint();
      if (isNew || has("moment", "only", "search", "isEverywhere")) lists[i].draw();
      else if (has("picked")) lists[i].fill();
      if (isNew || has("moment", "picked")) cards[i].draw();
    });
    if (isNew || has("moment", "only")) legend.draw();
  };
  store.listen(drawAll);
  drawAll(new Set(["all"]));
  requestAnimationFrame(() => setTimeout(() => performance.mark("painted")));
  listenToKeys(runs, store, actions, toolbar, help);
  new ResizeObserver(() => store.touch("size")).observe(main);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => store.touch("theme"));

  // What the first picture does not need.
  await new Promise((resolve) => setTimeout(resolve));
  for (const run of runs) {
    for (const device of run.devices) await device.loadStacks();
    for (const source of run.sources) await source.load();
    await run.goTo(run.moment, () => store.touch("all"));
  }
  document.documentElement.dataset.state = "ready";
}

/** Say what went wrong, once. */
function showFailure(/** @type {unknown} */ reason) {
  document.querySelector(".failure")?.remove();
  const text = reason instanceof Error ? reason.message : String(reason);
  document.body.prepend(make("p", { class: "failure", role: "alert" }, text));
}

addEventListener("unhandledrejection", ({ reason }) => showFailure(reason));
start();
