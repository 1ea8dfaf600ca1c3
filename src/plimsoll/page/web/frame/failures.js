// The list of out-of-memory failures, at the top of the page: each in words, with the call stack of
// the request and a button that goes to the moment.

import { stackList } from "../blocks/stack_list.js";
import { make, refill } from "../elements/dom.js";
import { formatCount, plural } from "../elements/format.js";

/** @import { Actions } from "../actions.js" */
/** @import { Moment } from "../history/device.js" */
/** @import { Run } from "../history/run.js" */

/** At most this many failures are listed; the key O goes to the others. */
const MOST_SHOWN = 20;

export class Failures {
  /**
   * @param {Run[]} runs
   * @param {Actions} actions
   */
  constructor(runs, actions) {
    this.runs = runs;
    this.actions = actions;
    this.element = make("section", { class: "failures", "aria-label": "Failures", hidden: true });
  }

  draw() {
    const found = this.runs.map((run) => this.failuresOf(run)).filter((one) => one !== null);
    this.element.hidden = found.length === 0;
    refill(this.element, found);
  }

  /** @param {Run} run */
  failuresOf(run) {
    const failures = run.device.moments.filter(({ kind }) => kind === "oom");
    if (failures.length === 0) return null;
    const name = run.letter ? `${run.letter} ran` : "Ran";
    const left = failures.length - MOST_SHOWN;
    return make(
      "div",
      {},
      make(
        "h2",
        {},
        `${name} out of memory${failures.length > 1 ? ` ${plural(failures.length, "time")}` : ""}`,
      ),
      make(
        "ul",
        {},
        ...failures
          .slice(0, MOST_SHOWN)
          .map((failure) => make("li", {}, ...this.say(run, failure))),
        left > 0
          ? make("li", {}, `and ${plural(left, "more time")}: the key O goes to the next.`)
          : null,
      ),
    );
  }

  /**
   * @param {Run} run
   * @param {Moment} failure
   */
  say(run, failure) {
    const { stacks } = run.device;
    const there = make(
      "button",
      { class: "link", onclick: () => this.actions.goTo(run, failure.event) },
      `event ${formatCount(failure.event)}`,
    );
    const text = ` ${failure.text.replace(/^out of memory: /, "")}.`;
    const hasStack =
      failure.stack !== null && stacks !== null && stacks.frames(failure.stack).length > 0;
    if (!hasStack) return [there, text];
    const line = stacks.line(/** @type {number} */ (failure.stack));
    return [
      there,
      text,
      make(
        "details",
        {},
        make("summary", {}, `asked for at ${line}`),
        stackList(stacks, failure.stack, "Call stack of the request"),
      ),
    ];
  }
}
