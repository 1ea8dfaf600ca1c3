// The legend: the bytes of each group at the moment. With two runs, it shows the bytes of both and
// their difference.

import { groupColour } from "../elements/colours.js";
import { make, nameOf, refill, swatch } from "../elements/dom.js";
import { formatBytes, formatCount, formatShare, formatTime } from "../elements/format.js";
import { MARKS } from "../timeline/marks.js";

/** @import { Run } from "../history/run.js" */
/** @import { Actions } from "../actions.js" */
/** @import { Store } from "../store.js" */

/** At most this many of a moment's marks are shown. */
const MOST_MARKS = 4;

export class Legend {
  /**
   * @param {Run[]} runs
   * @param {Store} store
   * @param {Actions} actions
   */
  constructor(runs, store, actions) {
    this.runs = runs;
    this.store = store;
    this.actions = actions;
    const go = (
      /** @type {string} */ text,
      /** @type {string} */ name,
      /** @type {() => void} */ act,
    ) => make("button", { "aria-label": name, title: name, onclick: act }, text);
    const move = (/** @type {number} */ by) =>
      actions.goTo(actions.active, actions.active.moment + by);
    this.steps = make(
      "div",
      { class: "choices steps", role: "group", "aria-label": "The moment" },
      go("|◀", "Mark before (Shift+N)", () => actions.goToMark(-1, null)),
      go("◀", "One event back (←)", () => move(-1)),
      go("peak", "To the peak (P)", () =>
        actions.goTo(actions.active, actions.active.device.peakEvent()),
      ),
      go("▶", "One event on (→)", () => move(1)),
      go("▶|", "Next mark (N)", () => actions.goToMark(1, null)),
    );
    this.heads = make("div", { class: "moments" });
    this.marks = make("div", { class: "marks", role: "status" });
    this.table = make("table", {});
    this.element = make(
      "section",
      { class: "card legend", "aria-label": "At the moment" },
      this.heads,
      this.marks,
      this.steps,
      make("div", { class: "legend-scroller" }, this.table),
    );
  }

  draw() {
    this.heads.replaceChildren(...this.runs.map((run) => this.head(run)));
    this.marks.replaceChildren(...this.runs.flatMap((run) => this.marksOf(run)));
    const isPair = this.runs.length > 1;
    const titles = isPair ? ["", "A", "B", "B − A"] : ["", "live", "share"];
    const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
    const body = this.rows().map(({ name, colour, isHatched, bytes, live }) => {
      const isOnly = this.store.state.only === name;
      const square = swatch(colour);
      if (isHatched) square.classList.add("hatched");
      const button = make(
        "button",
        {
          class: "group",
          title: name,
          "aria-pressed": isOnly,
          onclick: () => this.store.set({ only: isOnly ? null : name }),
        },
        square,
        nameOf("", name),
      );
      const [first, second] = bytes;
      const cells = isPair
        ? [formatBytes(first), formatBytes(second), signed(second - first)]
        : [formatBytes(first), formatShare(first, live)];
      const isFaint = this.store.state.only !== null && !isOnly;
      return make(
        "tr",
        { class: isFaint ? "faint" : "" },
        make("th", { scope: "row" }, button),
        ...cells.map((text) => make("td", {}, text)),
      );
    });
    refill(this.table, [make("thead", {}, head), make("tbody", {}, ...body)]);
  }

  /** @param {Run} run */
  head(run) {
    const { live, reserved, shared, isAtMost } = this.actions.summary(run);
    const { device, moment } = run;
    const about = device.span > 1 ? "about " : "";
    const place = `after event ${formatCount(moment)} · ${about}${formatTime(device.timeOf(moment))}`;
    const isPeak = moment === device.peakEvent();
    const extra = shared > 0 ? ` · ${formatBytes(shared)} of it in shared memory` : "";
    return make(
      "div",
      { class: "moment" },
      run.letter ? make("span", { class: "letter" }, run.letter) : null,
      make("strong", {}, `${isAtMost ? "at most " : ""}${formatBytes(live)} live`),
      make("span", {}, ` of ${formatBytes(reserved)} reserved${extra}`),
      make("div", { class: "faint" }, isPeak ? `${place} · the peak` : place),
    );
  }

  /** Returns elements for the marks at a run's moment. */
  marksOf(/** @type {Run} */ { device, moment, letter }) {
    const name = letter ? `${letter}: ` : "";
    const marks = device.moments.filter(({ event }) => event === moment);
    const shown = marks.slice(0, MOST_MARKS);
    const rest = marks.length - shown.length;
    return [
      ...shown.map(({ kind, text }) =>
        make("div", { class: `mark ${kind}` }, `${name}${MARKS[kind].sign} ${text}`),
      ),
      ...(rest > 0 ? [make("div", { class: "faint" }, `${name}and ${rest} more marks here`)] : []),
    ];
  }

  rows() {
    const { runs, actions } = this;
    /** @type {Map<string, { name: string, colour: string, isHatched: boolean, bytes: number[], live: number }>} */
    const rows = new Map();
    runs.forEach((run, r) => {
      const summary = actions.summary(run);
      const { groups } = run.device.key(this.store.state.key);
      summary.bytes.forEach((bytes, g) => {
        const isHatched = g >= groups.length;
        const name = groups[g] ?? `under ${formatBytes(run.device.leastBytes)}, at most`;
        let row = rows.get(name);
        if (row === undefined) {
          const colour = groupColour(actions.colours(run)[g] ?? 11);
          row = { name, colour, isHatched, bytes: runs.map(() => 0), live: summary.live };
          rows.set(name, row);
        }
        row.bytes[r] += bytes;
      });
    });
    // In the order of the bands on the timeline, from top to bottom.
    return [...rows.values()].reverse();
  }
}

function signed(/** @type {number} */ bytes) {
  return bytes === 0 ? "–" : `${bytes > 0 ? "+" : "−"}${formatBytes(Math.abs(bytes))}`;
}
