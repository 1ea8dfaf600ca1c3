// The bar at the top: runs, grouping key of the colours, axis, window, search and theme.

import { AXES } from "../history/axis.js";
import { make, refill } from "../elements/dom.js";
import { THEMES } from "../elements/theme.js";

/** @import { Run } from "../history/run.js" */
/** @import { Actions } from "../actions.js" */
/** @import { Link } from "../link.js" */
/** @import { Store } from "../store.js" */
/** @import { Help } from "./help.js" */

/**
 * The runs that the page can show.
 * @typedef {object} Library
 * @property {Run[]} runs All runs that were opened.
 * @property {(shown: Run[]) => void} show Shows one or two runs.
 * @property {() => void} open Lets the user choose files to open.
 */

/** The milliseconds for which a notice, such as "The link is copied.", stays. */
const NOTICE_MS = 5000;

export class Toolbar {
  /**
   * @param {Run[]} runs
   * @param {Store} store
   * @param {Actions} actions
   * @param {Link} link
   * @param {Help} help
   * @param {Library} library
   */
  constructor(runs, store, actions, link, help, library) {
    this.runs = runs;
    this.link = link;
    this.library = library;
    this.store = store;
    this.actions = actions;
    this.keys = make("div", { class: "choices", role: "group", "aria-label": "Colour by" });
    this.axes = make("div", {
      class: "choices",
      role: "group",
      "aria-label": "Along the timeline",
    });
    this.search = make("input", {
      type: "search",
      placeholder: "Search: forward or > 10 MiB, not 0x7f…",
      "aria-label": "Search blocks by line, size or address",
      "aria-describedby": "search-problem",
      spellcheck: false,
      oninput: () => store.set({ search: this.search.value }),
    });
    this.problem = make("span", { class: "problem", id: "search-problem", role: "status" });
    this.notice = make("span", { class: "notice", role: "status" });
    this.fit = make(
      "button",
      { title: "Height: all, or what the window needs (Y)", onclick: () => this.toggleFit() },
      "Fit",
    );
    this.theme = make("button", { title: "Theme (T)", onclick: () => this.nextTheme() });
    const zoom = (
      /** @type {string} */ text,
      /** @type {string} */ name,
      /** @type {() => void} */ act,
    ) => make("button", { title: name, "aria-label": name, onclick: act }, text);
    this.zoom = make(
      "div",
      { class: "choices", role: "group", "aria-label": "Window" },
      zoom("−", "Zoom out (S)", () => actions.zoomAroundMoment(1 / 0.7)),
      zoom("+", "Zoom in (W)", () => actions.zoomAroundMoment(0.7)),
      make("button", { title: "Show all (0)", onclick: () => actions.showAll() }, "All"),
    );
    this.element = make(
      "header",
      { class: "toolbar" },
      make("span", { class: "logo", "aria-hidden": "true" }),
      make("h1", {}, "plimsoll"),
      make("span", { class: "file" }, ...this.names()),
      this.keys,
      this.axes,
      this.fit,
      this.zoom,
      make("div", { class: "search" }, this.search, this.problem, this.notice),
      make(
        "button",
        {
          title: "Copy a link to this moment and block (L)",
          "aria-label": "Copy link",
          onclick: () => this.copyLink(),
        },
        "Link",
      ),
      make(
        "button",
        { title: "Open a further file (F), or drop it here", onclick: () => library.open() },
        "Open",
      ),
      this.theme,
      make(
        "button",
        { title: "Keys (?)", "aria-label": "Keys", onclick: () => help.toggle() },
        "?",
      ),
    );
  }

  names() {
    const { library, runs } = this;
    const found = runs.map((run) => make("span", {}, this.nameOf(run), this.deviceOf(run)));
    const isAlone = runs.length === 1 && library.runs.length > 1;
    if (isAlone) found.push(make("span", {}, this.choiceOf(1)));
    return found;
  }

  /** Makes the element with a run's name; if several runs are open, the menu that lists them. */
  nameOf(/** @type {Run} */ run) {
    if (this.library.runs.length > 1) return this.choiceOf(this.runs.indexOf(run));
    return make("span", { class: "name", title: run.name }, run.name);
  }

  /** Makes the menu of open runs for a place on the page: 0 for A, 1 for B. */
  choiceOf(/** @type {number} */ place) {
    const { library, runs } = this;
    const letter = "AB"[place];
    const options = library.runs.map((run, i) =>
      make("option", { value: String(i) }, `${letter}: ${run.name}`),
    );
    if (place > 0) options.unshift(make("option", { value: "-1" }, "compare with …"));
    const choice = make(
      "select",
      {
        class: "run",
        "aria-label": `Run ${letter}`,
        onchange: () => {
          const chosen = library.runs[Number(choice.value)];
          const shown = [...runs];
          const other = shown.indexOf(chosen);
          if (other >= 0 && runs[place]) shown[other] = runs[place]; // swaps the two runs
          if (chosen) shown[place] = chosen;
          else shown.splice(place, 1);
          library.show(shown);
        },
      },
      ...options,
    );
    choice.value = String(runs[place] ? library.runs.indexOf(runs[place]) : -1);
    return choice;
  }

  /** Makes the menu of a run's devices; returns null if the run has only one. */
  deviceOf(/** @type {Run} */ run) {
    if (run.devices.length === 1) return null;
    const options = run.devices.map((device, i) =>
      make("option", { value: String(i) }, `device ${device.number}`),
    );
    const choice = make(
      "select",
      {
        "aria-label": `Device of ${run.name}`,
        onchange: () => this.actions.setDevice(run, Number(choice.value)),
      },
      ...options,
    );
    choice.value = String(run.chosen);
    return choice;
  }

  draw() {
    const { state } = this.store;
    const { device } = this.actions.active;
    const choice = (
      /** @type {string} */ text,
      /** @type {string} */ title,
      /** @type {boolean} */ isChosen,
      /** @type {() => void} */ choose,
    ) => make("button", { title, "aria-pressed": isChosen, onclick: choose }, text);
    refill(
      this.keys,
      device.keys.map((key, i) =>
        choice(key.title, `Colour by it (${i + 1})`, key.name === state.key, () =>
          this.actions.setKey(key.name),
        ),
      ),
    );
    refill(
      this.axes,
      Object.entries(AXES).map(([name, axis]) =>
        choice(axis.title, "Along the timeline (X)", name === state.axis, () =>
          this.actions.setAxis(name),
        ),
      ),
    );
    this.fit.setAttribute("aria-pressed", String(state.isFitted));
    this.theme.textContent = { auto: "◐", light: "☀", dark: "☾" }[state.theme] ?? "";
    this.theme.setAttribute("aria-label", `Theme: ${state.theme}`);
    if (document.activeElement !== this.search) this.search.value = state.search;
    const { problem } = this.actions.query(this.actions.active);
    this.problem.textContent = problem;
    this.search.setAttribute("aria-invalid", String(problem !== ""));
  }

  async copyLink() {
    this.link.write();
    try {
      await navigator.clipboard.writeText(location.href);
      this.notice.textContent = "The link is copied.";
    } catch {
      this.notice.textContent = "The address of this page is the link: copy it there.";
    }
    setTimeout(() => (this.notice.textContent = ""), NOTICE_MS);
  }

  toggleFit() {
    this.store.set({ isFitted: !this.store.state.isFitted });
  }

  nextTheme() {
    const next = THEMES[(THEMES.indexOf(this.store.state.theme) + 1) % THEMES.length];
    this.store.set({ theme: next });
  }
}
