// The table of all frames in the call stacks of live blocks, with their totals.

import { make } from "../elements/dom.js";
import { formatBytes, formatCount, formatShare, packagePath } from "../elements/format.js";

/** @import { FrameTree } from "../history/frame_tree.js" */

/** At most this many rows are shown; the table says how many more there are. */
const MOST_ROWS = 300;

/**
 * @param {FrameTree} tree
 * @param {(text: string) => void} search Searches for the blocks of a frame.
 */
export function frameTable(tree, search) {
  const totals = tree.totals();
  const rows = totals.slice(0, MOST_ROWS).map(({ frame, bytes, own, blocks }) => {
    const { file, line, name, isProgram } = tree.stacks.frame(frame);
    const place = line > 0 ? `${file}:${line}` : file;
    const button = make(
      "button",
      {
        class: "link",
        title: `Search its blocks: ${place}`,
        onclick: () => search(`${packagePath(file)}:${line} ${name}`),
      },
      name,
    );
    return make(
      "tr",
      { class: isProgram ? "" : "faint" },
      make("td", {}, formatBytes(bytes)),
      make("td", {}, formatShare(bytes, tree.bytes[0])),
      make("td", {}, own > 0 ? formatBytes(own) : "–"),
      make("td", {}, formatCount(blocks)),
      make(
        "th",
        { scope: "row" },
        make("span", { class: "place" }, packagePath(place)),
        " ",
        button,
      ),
    );
  });
  const head = ["Total", "Share", "Own", "Blocks", "Frame"].map((title) =>
    make("th", { scope: "col" }, title),
  );
  const left = totals.length - rows.length;
  return make(
    "table",
    { class: "frames", "aria-label": "Totals of each frame" },
    make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...rows),
    left > 0 ? make("caption", {}, `${formatCount(left)} smaller frames are not listed.`) : null,
  );
}
