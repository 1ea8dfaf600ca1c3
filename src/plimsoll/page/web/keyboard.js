// Handles the keys that work wherever the focus is; help.js lists them for the user.

import { FORMS } from "./flame/flame_graph.js";
import { LAYOUTS } from "./map/layout.js";

/** @import { Help } from "./frame/help.js" */
/** @import { Library, Toolbar } from "./frame/toolbar.js" */
/** @import { Views } from "./frame/views.js" */
/** @import { Run } from "./history/run.js" */
/** @import { Actions } from "./actions.js" */
/** @import { Store } from "./store.js" */

/**
 * The parts of the page that the keys act on.
 * @typedef {object} Played
 * @property {Run[]} runs
 * @property {Store} store
 * @property {Actions} actions
 * @property {Toolbar} toolbar
 * @property {Help} help
 * @property {Views} views The views of the first run; those of the second show the same view.
 * @property {Library} library
 */

/**
 * @param {Played} played
 * @param {AbortSignal} signal Ends the listening.
 */
export function listenToKeys(played, signal) {
  const { runs, store, actions, toolbar, help, views, library } = played;
  const move = (/** @type {number} */ events) =>
    actions.goTo(actions.active, actions.active.moment + events);
  const pan = (/** @type {number} */ part) =>
    actions.pan((store.state.to - store.state.from) * part);
  const next = (/** @type {string[]} */ names, /** @type {string} */ now) =>
    names[(names.indexOf(now) + 1) % names.length];

  /** @type {Record<string, (event: KeyboardEvent) => void>} */
  const keys = {
    ArrowLeft: (event) => move(event.shiftKey ? -100 : -1),
    ArrowRight: (event) => move(event.shiftKey ? 100 : 1),
    a: () => pan(-0.2),
    d: () => pan(0.2),
    w: () => actions.zoomAroundMoment(0.7),
    s: () => actions.zoomAroundMoment(1 / 0.7),
    "+": () => actions.zoomAroundMoment(0.7),
    "=": () => actions.zoomAroundMoment(0.7),
    "-": () => actions.zoomAroundMoment(1 / 0.7),
    0: () => actions.showAll(),
    z: () => showStep(actions),
    p: () => actions.goTo(actions.active, actions.active.device.peakEvent()),
    n: (event) => actions.goToMark(event.shiftKey ? -1 : 1, null),
    o: () => actions.goToMark(1, "oom"),
    x: () => actions.setAxis(store.state.axis === "events" ? "time" : "events"),
    y: () => toolbar.toggleFit(),
    v: () => {
      const names = views.views.map(({ name }) => name);
      store.set({ view: next(names, views.shown.name) });
    },
    c: () =>
      store.set({ view: "flame", flameForm: next(Object.keys(FORMS), store.state.flameForm) }),
    l: () => toolbar.copyLink(),
    f: () => library.open(),
    m: () => store.set({ layout: next(Object.keys(LAYOUTS), store.state.layout) }),
    b: () => store.set({ panel: (store.state.panel + 1) % runs.length }),
    t: () => toolbar.nextTheme(),
    "?": () => help.toggle(),
    "/": (event) => {
      event.preventDefault();
      toolbar.search.focus();
    },
    Escape: () => {
      toolbar.search.value = "";
      store.set({ search: "", only: null });
      actions.pickBlock(actions.active, -1);
    },
  };

  document.addEventListener(
    "keydown",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (help.element.open && event.key !== "?") return;
      const target = /** @type {HTMLElement} */ (event.target);
      const isTyping = target === toolbar.search || target.tagName === "SELECT";
      if (isTyping && event.key !== "Escape") return;
      if (isTyping) target.blur();
      const number = Number(event.key);
      const { keys: colours } = actions.active.device;
      if (number >= 1 && number <= colours.length) actions.setKey(colours[number - 1].name);
      else keys[event.key.length === 1 ? event.key.toLowerCase() : event.key]?.(event);
    },
    { signal },
  );
}

/** Sets the window to the training step around the moment. */
function showStep(/** @type {Actions} */ actions) {
  const { device, moment } = actions.active;
  const ends = device.moments.filter(({ kind }) => kind === "step").map(({ event }) => event);
  if (ends.length === 0) return;
  const before = ends.findLast((event) => event <= moment) ?? 0;
  const after = ends.find((event) => event > moment) ?? device.events - 1;
  actions.show(actions.axis.placeOf(device, before), actions.axis.placeOf(device, after));
}
