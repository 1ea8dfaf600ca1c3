// The views of a moment, such as the map: each has a tab, and one is shown at a time.

import { make } from "../elements/dom.js";

/** @import { Store } from "../store.js" */

/**
 * @typedef {object} View
 * @property {string} name
 * @property {string} title
 * @property {Node[]} controls The elements that stand beside the tabs.
 * @property {HTMLElement} element
 * @property {() => void} draw
 * @property {() => void} paint Draws only what depends on the pointer and the picked block.
 */

export class Views {
  /**
   * @param {View[]} views
   * @param {Store} store
   * @param {string} letter The run's letter.
   */
  constructor(views, store, letter) {
    this.views = views;
    this.store = store;
    this.tabs = views.map((view, i) => {
      view.element.id = `view-${view.name}${letter}`;
      view.element.setAttribute("role", "tabpanel");
      view.element.setAttribute("aria-labelledby", `tab-${view.name}${letter}`);
      return make(
        "button",
        {
          id: `tab-${view.name}${letter}`,
          role: "tab",
          "aria-controls": view.element.id,
          onclick: () => store.set({ view: view.name }),
          onkeydown: (/** @type {KeyboardEvent} */ event) => this.onKey(event, i),
        },
        view.title,
      );
    });
    this.controls = make("div", { class: "controls" });
    this.element = make(
      "section",
      { class: "card views", "aria-label": `Views ${letter}`.trim() },
      make(
        "header",
        {},
        make("div", { class: "choices", role: "tablist", "aria-label": "View" }, ...this.tabs),
        this.controls,
      ),
      ...views.map(({ element }) => element),
    );
  }

  get shown() {
    return this.views.find(({ name }) => name === this.store.state.view) ?? this.views[0];
  }

  draw() {
    const { shown } = this;
    this.views.forEach((view, i) => {
      const isShown = view === shown;
      view.element.hidden = !isShown;
      this.tabs[i].setAttribute("aria-selected", String(isShown));
      this.tabs[i].tabIndex = isShown ? 0 : -1;
    });
    if (this.controls.dataset.of !== shown.name) {
      this.controls.dataset.of = shown.name;
      this.controls.replaceChildren(...shown.controls);
    }
    shown.draw();
  }

  /**
   * @param {KeyboardEvent} event
   * @param {number} i
   */
  onKey(event, i) {
    const step = /** @type {Record<string, number>} */ ({ ArrowRight: 1, ArrowLeft: -1 })[
      event.key
    ];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const next = (i + step + this.views.length) % this.views.length;
    this.store.set({ view: this.views[next].name });
    this.tabs[next].tabIndex = 0;
    this.tabs[next].focus();
  }
}
