// The page: reads what it carries, makes its parts, and keeps them in step.

import { Actions } from "./actions.js";
import { BlockCard } from "./blocks/block_card.js";
import { BlockList } from "./blocks/block_list.js";
import { make } from "./elements/dom.js";
import { applyTheme } from "./elements/theme.js";
import { Help } from "./frame/help.js";
import { Legend } from "./frame/legend.js";
import { Notes } from "./frame/notes.js";
import { Toolbar } from "./frame/toolbar.js";
import { Run } from "./history/run.js";
import { listenToKeys } from "./keyboard.js";
import { AddressMap } from "./map/address_map.js";
import { Store } from "./store.js";
import { Strip } from "./timeline/strip.js";
import { Timeline } from "./timeline/timeline.js";

/** @import { PackedRun } from "./history/run.js" */

/** @typedef {{ served: boolean, runs: PackedRun[] }} PackedPage */

async function start() {
  /** @type {PackedPage} */
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
