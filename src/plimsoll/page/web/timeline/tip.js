// Makes the text about the place under the pointer on a timeline.

import { groupColour } from "../elements/colours.js";
import { make, nameOf, swatch } from "../elements/dom.js";
import { formatBytes, formatCount, formatTime } from "../elements/format.js";
import { MARKS } from "./marks.js";

/** @import { Actions } from "../actions.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Spans } from "../history/spans.js" */
/** @import { Crowd } from "./marks.js" */

/**
 * @param {Run} run
 * @param {Actions} actions
 * @param {Spans} spans
 * @param {number} column The index of a column in the spans.
 * @param {Crowd | undefined} near The marks at the pointer.
 */
export function tipRows(run, actions, spans, column, near) {
  const { store } = actions;
  const { device } = run;
  const event = spans.event[column];
  const time = `${device.span > 1 ? "about " : ""}${formatTime(device.timeOf(event))}`;
  const names = device.key(store.state.key).groups;
  /** @type {(Node | string)[]} */
  const rows = [
    make("strong", {}, `${formatBytes(spans.high[column])} live`),
    make("div", {}, `after event ${formatCount(event)}, ${time}`),
    make("div", {}, `${formatBytes(spans.reserved[column])} reserved`),
  ];
  if (spans.shared[column] > 0) {
    rows.push(make("div", {}, `${formatBytes(spans.shared[column])} of it in shared memory`));
  }
  if (spans.low[column] < spans.high[column]) {
    const low = formatBytes(spans.low[column]);
    rows.push(make("div", { class: "faint" }, `down to ${low} within this pixel`));
  }
  const shares = Array.from({ length: spans.groups }, (_, g) => ({
    name: names[g] ?? `blocks under ${formatBytes(device.leastBytes)}, at most`,
    colour: groupColour(actions.colours(run)[g] ?? 11),
    bytes: spans.bytes[column * spans.groups + g],
  })).filter(({ bytes }) => bytes > 0);
  shares.sort((a, b) => b.bytes - a.bytes);
  for (const { name, colour, bytes } of shares.slice(0, 8)) {
    const label = nameOf("name", name);
    rows.push(make("div", { class: "share" }, swatch(colour), label, formatBytes(bytes)));
  }
  for (const moment of near?.moments.slice(0, 4) ?? []) {
    rows.push(make("div", { class: "said" }, `${MARKS[moment.kind].sign} ${moment.text}`));
  }
  if (near && near.moments.length > 4) {
    rows.push(make("div", { class: "faint" }, `and ${near.moments.length - 4} more marks here`));
  }
  return rows;
}
