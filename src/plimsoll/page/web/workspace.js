// Everything that the page shows of one run, or of two side by side; redraws the parts that change.

import { Actions } from "./actions.js";
import { BlockCard } from "./blocks/block_card.js";
import { BlockList } from "./blocks/block_list.js";
import { make } from "./elements/dom.js";
import { applyTheme } from "./elements/theme.js";
import { FlameGraph } from "./flame/flame_graph.js";
import { Failures } from "./frame/failures.js";
import { Help } from "./frame/help.js";
import { Legend } from "./frame/legend.js";
import { Notes } from "./frame/notes.js";
import { Toolbar } from "./frame/toolbar.js";
import { Views } from "./frame/views.js";
import { listenToKeys } from "./keyboard.js";
import { Link } from "./link.js";
import { AddressMap } from "./map/address_map.js";
import { SegmentTimeline } from "./segments/segment_timeline.js";
import { Store } from "./store.js";
import { Strip } from "./timeline/strip.js";
import { Timeline } from "./timeline/timeline.js";

/** @import { Library } from "./frame/toolbar.js" */
/** @import { Run } from "./history/run.js" */
/** @import { State } from "./store.js" */

/** @type {State} */
const AT_FIRST = {
  key: "category",
  axis: "events",
  from: 0,
  to: 1,
  isFitted: false,
  only: null,
  view: "map",
  layout: "packed",
  flameForm: "graph",
  theme: "auto",
  search: "",
  isEverywhere: false,
  panel: 0,
};

/** The parts of the state that stay when other runs are shown. */
const KEPT = /** @type {const} */ (["key", "axis", "view", "layout", "flameForm", "theme"]);

export class Workspace {
  /**
   * @param {Run[]} runs One run, or two.
   * @param {Library} library
   * @param {State} [before] The state of the workspace before this one.
   */
  constructor(runs, library, before) {
    this.runs = runs;
    runs.forEach((run, i) => (run.letter = runs.length > 1 ? "AB"[i] : ""));
    const state = { ...AT_FIRST };
    if (before) for (const name of KEPT) Object.assign(state, { [name]: before[name] });
    this.store = new Store(state);
    this.actions = new Actions(runs, this.store);
    this.link = new Link(this.actions);
    this.library = library;
    this.ended = new AbortController();
    /** The elements that this workspace puts into the page. @type {HTMLElement[]} */
    this.elements = [];
  }

  /** Puts the elements into the page, and draws what needs no details of the runs. */
  async start() {
    const { runs, store, actions, link, ended } = this;
    const isPair = runs.length > 1;
    document.title = `${runs.map(({ name }) => name).join(" and ")} · plimsoll view`;
    applyTheme(store.state.theme);
    await actions.setKey(runs[0].device.key(store.state.key).name);
    actions.showAll();

    const help = new Help();
    const toolbar = new Toolbar(runs, store, actions, link, help, this.library);
    const failures = new Failures(runs, actions);
    const legend = new Legend(runs, store, actions);
    const notes = new Notes(runs);
    const timelines = runs.map((run) => new Timeline(run, store, actions));
    const strips = runs.map((run) => new Strip(run, store, actions));
    const views = runs.map(
      (run) =>
        new Views(
          [
            new AddressMap(run, store, actions),
            new FlameGraph(run, store, actions),
            new SegmentTimeline(run, store, actions),
          ],
          store,
          run.letter,
        ),
    );
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
      make(
        "div",
        { class: "details" },
        views[i].element,
        make("div", { class: "side" }, lists[i].element, cards[i].element),
      ),
    );
    const main = make("main", {}, ...times, legend.element, ...details);
    this.elements = [toolbar.element, failures.element, main, notes.element, help.element];
    document.body.classList.toggle("pair", isPair);
    document.body.append(...this.elements);

    const drawAll = (/** @type {Set<string>} */ changed) => {
      const has = (/** @type {string[]} */ ...names) => names.some((name) => changed.has(name));
      const isNew = has("key", "theme", "size", "all");
      const isMoved = has("from", "to", "axis", "isFitted", "window");
      if (has("theme")) applyTheme(store.state.theme);
      if (isNew || has("search", "axis", "panel", "isFitted")) toolbar.draw();
      if (has("key", "all")) failures.draw();
      runs.forEach((_, i) => {
        if (isNew || isMoved || has("only")) {
          timelines[i].draw();
          strips[i].draw();
        } else if (has("moment", "picked")) timelines[i].drawOverlay();
        const isOverTime = store.state.view === "segments" && isMoved;
        if (isNew || isOverTime || has("moment", "only", "layout", "search", "view", "flameForm")) {
          views[i].draw();
        } else if (has("picked")) views[i].shown.paint();
        if (isNew || has("moment", "only", "search", "isEverywhere")) lists[i].draw();
        else if (has("picked")) lists[i].fill();
        if (isNew || has("moment", "picked")) cards[i].draw();
      });
      if (isNew || has("moment", "only")) legend.draw();
      if (has("key", "moment", "picked", "view")) link.follow();
    };
    drawAll(new Set(["all"]));
    store.changed.clear();
    store.listen(drawAll);
    listenToKeys(
      { runs, store, actions, toolbar, help, views: views[0], library: this.library },
      ended.signal,
    );
    const sizes = new ResizeObserver(() => store.touch("size"));
    for (const element of [
      main,
      ...views.map(({ element }) => element),
      ...lists.map(({ element }) => element),
    ]) {
      sizes.observe(element);
    }
    ended.signal.addEventListener("abort", () => sizes.disconnect());
    matchMedia("(prefers-color-scheme: dark)").addEventListener(
      "change",
      () => store.touch("theme"),
      {
        signal: ended.signal,
      },
    );
  }

  /** Shows the blocks held at the moment; call it once the runs' details are loaded. */
  async complete() {
    for (const run of this.runs) await run.goTo(run.moment, () => this.store.touch("all"));
  }

  /** Removes the workspace from the page. */
  end() {
    this.ended.abort();
    this.link.stop();
    this.store.stop();
    for (const element of this.elements) element.remove();
  }
}
