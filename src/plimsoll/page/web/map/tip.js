// Makes the text about the place under the pointer on the map.

import { make } from "../elements/dom.js";
import { formatAddress, formatBytes, plural } from "../elements/format.js";

/** @import { Actions } from "../actions.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Gap, GapKind } from "./gaps.js" */
/** @import { Place, PlacedBlocks } from "./placed_blocks.js" */

/** @type {Record<GapKind, string>} */
const NAMES = {
  rounding: "rounding of",
  fragment: "fragment of",
  free: "free:",
};

/**
 * @param {Run} run
 * @param {Actions} actions
 * @param {PlacedBlocks} placed
 * @param {Gap[][]} gaps
 * @param {Place} place
 */
export function tipRows(run, actions, placed, gaps, place) {
  const { blocks } = placed;
  const { device } = run;
  const { segment } = place.stretch;
  const rows = [];
  if (place.row >= 0) {
    const i = place.row;
    rows.push(make("strong", {}, formatBytes(blocks.size[i])));
    const state = blocks.isLive(i, run.moment) ? "" : "freed, waits for other streams; ";
    rows.push(make("div", {}, `${state}at ${formatAddress(device.origin, blocks.address[i])}`));
    if (actions.store.state.key !== "line") {
      rows.push(make("div", {}, actions.groupName(run, i)));
    }
    if (blocks.shared[i] > 0) {
      rows.push(make("div", {}, `${formatBytes(blocks.shared[i])} of it in shared memory`));
    }
    const rounding = blocks.taken(i) - blocks.size[i];
    if (rounding > 0) rows.push(make("div", {}, `${formatBytes(rounding)} more by rounding`));
    rows.push(make("div", { class: "faint" }, device.stacks?.line(blocks.stack[i]) ?? ""));
  } else {
    const gap = (gaps[place.stretch.index] ?? []).find(
      ({ begin, end }) => begin <= place.byte && place.byte < end,
    );
    if (gap) {
      const size = formatBytes(gap.end - gap.begin);
      rows.push(make("strong", {}, `${NAMES[gap.kind]} ${size}`));
      const address = formatAddress(device.origin, segment.address + gap.begin);
      rows.push(make("div", {}, `at ${address}`));
    }
  }
  const kind = segment.isPrivate ? "private pool, " : "";
  const pieces = segment.pieces.length > 1 ? ` in ${plural(segment.pieces.length, "piece")}` : "";
  const text = `segment of ${formatBytes(segment.size)}${pieces}, ${kind}stream ${device.streams[segment.stream] ?? segment.stream}`;
  rows.push(make("div", { class: "faint" }, text));
  return rows;
}
