// Shows notes on what the page leaves out, and on every figure that is approximate.

import { mostOf } from "../history/columns.js";
import { make } from "../elements/dom.js";
import { formatBytes, formatCount, plural } from "../elements/format.js";

/** @import { Device } from "../history/device.js" */
/** @import { Run } from "../history/run.js" */

export class Notes {
  /** @param {Run[]} runs */
  constructor(runs) {
    const devices = runs.flatMap((run) =>
      run.devices.map((device, i) => {
        const number = run.devices.length > 1 ? `device ${device.number}` : "";
        return { device, isServed: run.sources[i].isServed, name: [run.letter, number].filter(Boolean).join(", ") };
      }),
    );
    const items = devices.flatMap(({ device, isServed, name }) =>
      notesOf(device, isServed).map((text) => make("li", {}, name ? `${name}: ${text}` : text)),
    );
    const isWhole = devices.every(({ device }) => device.leastBytes === 0);
    const summary = isWhole
      ? "Complete: every event and every block is in this page."
      : devices.every(({ device, isServed }) => isServed || device.leastBytes === 0)
        ? "Complete, as long as the server behind this page runs."
        : "Small blocks are summed up in this page.";
    this.element = make(
      "details",
      { class: "notes" },
      make("summary", {}, summary, make("span", { class: "faint" }, " About these figures")),
      make("ul", {}, ...items),
    );
  }
}

/**
 * @param {Device} device
 * @param {boolean} isServed
 */
function notesOf(device, isServed) {
  const notes = [
    `${plural(device.events, "event")} and ${plural(device.blockCount, "block")}. Sizes are those ` +
      "that were asked for: what rounding adds is not in them, but in what is reserved.",
    "On the map, rounding is what the allocator's rule adds to a request, and the end that it left " +
      "to a block since it was too small to be split off. Where free memory follows such an end, " +
      "which is up to 1 MiB, it counts as part of the fragment.",
    "A block is live until its free is asked for, as in PyTorch's allocated bytes; on the map it " +
      "keeps its place until other streams are done with it.",
    "Each column of the timeline shows the moment at which the most was live in it; the thin line " +
      "is the least.",
  ];
  if (device.span > 1) {
    notes.push(
      `Seen from afar, events are drawn ${formatCount(device.span)} at a time, by the highest ` +
        "moment of each; closer up, one by one. Times are known for the first of each " +
        `${formatCount(device.span)} events; between, they are spread evenly.`,
    );
  }
  if (device.sharedPeak > 0) {
    notes.push(
      "How much of a block or a segment lies in shared memory is recorded, but not which part: it " +
        "is drawn at the end.",
    );
  }
  if (device.leftOut !== null) {
    const left = plural(device.leftOut.blocks, "block");
    const most = formatBytes(mostOf(device.leftOut.high));
    notes.push(
      isServed
        ? `${left} under ${formatBytes(device.leastBytes)} come from the server as they are ` +
            "needed."
        : `${left} under ${formatBytes(device.leastBytes)}, ${most} at most at once, are not here ` +
            "one by one. Seen from afar they are in their groups, to the byte. Closer up and at a " +
            `moment they are one hatched group: the most they were in the ${formatCount(device.span)} ` +
            "events around, never less than what was live. plimsoll view --serve shows each of them.",
    );
  }
  return [...notes, ...device.notes];
}
