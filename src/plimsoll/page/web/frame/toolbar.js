// The bar at the top: what is shown, by what, and the search.

import { AXES } from "../history/axis.js";
import { make } from "../elements/dom.js";
import { THEMES } from "../elements/theme.js";

/** @import { Run } from "../history/run.js" */
/** @import { Actions } from "../actions.js" */
/** @import { Store } from "../store.js" */
/** @import { Help } from "./help.js" */

export class Toolbar {
  /**
   * @param {Run[]} runs
   * @param {Store} store
   * @param {Actions} actions
   * @param {Help} help
   */
  constructor(runs, store, actions, help) {
    this.runs = runs;
    this.store = store;
    this.actions = actions;
    this.keys = make("div", { class: "choices", role: "group", "aria-label": "Colour by" });
    this.axes = make("div", { class: "choices", role: "group", "aria-label": "Along the timeline" });
    this.search = make("input", {
      type: "search",
      placeholder: "Search: line, >10MiB, 0x7f…",
      "aria-label": "Search blocks by line, size or address",
      spellcheck: false,
      oninput: () => store.set({ search: this.search.value }),
    });
    this.fit = make(
      "button",
      { title: "Height: all, or what the window needs (Y)", onclick: () => this.toggleFit() },
      "Fit height",
    );
    this.theme = make("button", { title: "Theme (T)", onclick: () => this.nextTheme() });
    this.all = make("button", { title: "Show all (0)", onclick: () => actions.showAll() }, "All");
    this.element = make(
      "header",
      { class: "toolbar" },
      make("span", { class: "logo", "aria-hidden": "true" }),
      make("h1", {}, "plimsoll"),
      make("span", { class: "file" }, ...this.names()),
      this.keys,
      this.axes,
      this.fit,
      this.all,
      this.search,
      this.theme,
      make("button", { title: "Keys (?)", "aria-label": "Keys", onclick: () => help.toggle() }, "?"),
    );
  }

  names() {
    return this.runs.map((run) => {
      // With two runs, their timelines bear their names.
      const isNeeded = run.letter === "" || run.devices.length > 1;
      const text = run.letter || run.name;
      const name = make("span", { class: "name", title: run.name }, isNeeded ? text : "");
      if (run.devices.length === 1) return name;
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
      return make("span", {}, name, choice);
    });
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
    this.keys.replaceChildren(
      ...device.keys.map((key, i) =>
        choice(key.title, `Colour by it (${i + 1})`, key.name === state.key, () =>
          this.actions.setKey(key.name),
        ),
      ),
    );
    this.axes.replaceChildren(
      ...Object.entries(AXES).map(([name, axis]) =>
        choice(axis.title, "Along the timeline (X)", name === state.axis, () =>
          this.actions.setAxis(name),
        ),
      ),
    );
    this.fit.setAttribute("aria-pressed", String(state.isFitted));
    this.theme.textContent = { auto: "◐", light: "☀", dark: "☾" }[state.theme] ?? "";
    this.theme.setAttribute("aria-label", `Theme: ${state.theme}`);
    if (document.activeElement !== this.search) this.search.value = state.search;
  }

  toggleFit() {
    this.store.set({ isFitted: !this.store.state.isFitted });
  }

  nextTheme() {
    const next = THEMES[(THEMES.indexOf(this.store.state.theme) + 1) % THEMES.length];
    this.store.set({ theme: next });
  }
}
