// The list of keys, pointer gestures and marks, in a dialog over the page.

import { make } from "../elements/dom.js";
import { MARKS } from "../timeline/marks.js";

const KEYS = [
  ["← →", "the moment one event back or on; with Shift, 100"],
  ["A D", "move the window left or right"],
  ["W S, + −", "zoom in or out around the moment"],
  ["0", "show all"],
  ["Z", "zoom into the step around the moment"],
  ["P", "go to the peak"],
  ["N, Shift+N", "to the next mark, to the one before"],
  ["O", "to the next out of memory"],
  ["1 … 6", "colour by category, line, stream, size, …"],
  ["Tab", "from timeline to view to list; there, arrow keys go from block to block"],
  ["PageDown, PageUp", "on the map: what is free, piece by piece"],
  ["V", "next view: address space, call stacks, segments"],
  ["C", "call stacks: flame graph, totals of each frame"],
  ["/", "search: words, > 10 MiB, 2 MiB, 0x7f…, with or, not, ( ) and \"…\""],
  ["Esc", "leave the search, let go of the block, show all groups"],
  ["X", "events or time along the timeline"],
  ["Y", "height: all, or what the window needs"],
  ["M", "next layout of the map"],
  ["B", "with two runs: the other one"],
  ["L", "copy a link to the moment and the block"],
  ["F", "open a further file, as dropping it here does"],
  ["T", "theme: as the system, light, dark"],
  ["?", "these keys"],
];

const POINTER = [
  ["click", "choose a moment, a block, a group"],
  ["drag", "zoom into what is dragged over; with Shift, move"],
  ["wheel", "zoom around the pointer; sideways or with Shift, move"],
  ["double click", "show all"],
  ["one finger", "tap to choose, move sideways to move the window"],
  ["two fingers", "zoom"],
];

export class Help {
  constructor() {
    const list = (/** @type {string[][]} */ rows) =>
      make("dl", {}, ...rows.flatMap(([key, what]) => [make("dt", {}, key), make("dd", {}, what)]));
    this.element = make(
      "dialog",
      { class: "help", "aria-label": "Keys", onclick: () => this.element.close() },
      make("form", { method: "dialog" }, make("button", {}, "Close")),
      make(
        "div",
        { class: "lists" },
        make("h2", {}, "Keys"),
        list(KEYS),
        make("h2", {}, "Pointer"),
        list(POINTER),
        make("h2", {}, "Marks"),
        list(Object.values(MARKS).map(({ sign, name }) => [sign, name])),
      ),
    );
  }

  toggle() {
    if (this.element.open) this.element.close();
    else this.element.showModal();
  }
}
