// Makes the list of a call stack's frames, innermost first.

import { make } from "../elements/dom.js";
import { packagePath } from "../elements/format.js";

/** @import { Stacks } from "../history/stacks.js" */

/**
 * @param {Stacks | null} stacks
 * @param {number | null} stack
 * @param {string} name The label, such as "Call stack of the free".
 */
export function stackList(stacks, stack, name) {
  const frames = stack === null ? [] : (stacks?.frames(stack) ?? []);
  if (frames.length === 0) return make("p", { class: "caption" }, "No call stack was recorded.");
  // The program's and the user's innermost frames, which the stack's source line names.
  const here = [
    frames.findIndex(({ isProgram }) => isProgram),
    frames.findIndex(({ isUsers }) => isUsers),
  ];
  const items = frames.map(({ file, line, name: frame }, i) =>
    make(
      "li",
      { class: here.includes(i) ? "here" : "" },
      make("span", { class: "place", title: file }, `${packagePath(file)}:${line}`),
      " ",
      make("span", { class: "function" }, frame),
    ),
  );
  return make("ol", { class: "stack", "aria-label": `${name}, innermost first` }, ...items);
}
