// Draws the map: segments, and the blocks and holes in them.

import { groupColour, themeColour } from "../elements/colours.js";
import { formatBytes } from "../elements/format.js";
import { groupsOf } from "../history/groups.js";

/** @import { Actions } from "../actions.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Gap } from "./gaps.js" */
/** @import { Stretch } from "./layout.js" */
/** @import { PlacedBlocks } from "./placed_blocks.js" */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Stretch[]} stretches
 * @param {Gap[][]} gaps The gaps in each segment.
 * @param {PlacedBlocks} placed
 * @param {Run} run
 * @param {Actions} actions
 */
export function drawStretches(context, stretches, gaps, placed, run, actions) {
  const { blocks } = placed;
  const { state } = actions.store;
  const key = run.device.key(state.key);
  const groups = groupsOf(key, blocks);
  const numbers = actions.colours(run);
  const colours = numbers.map(groupColour);
  const found = actions.found(run);
  const [dimmed, waiting] = [themeColour("dimmed"), themeColour("waiting")];
  const [hole, edge] = [themeColour("hole"), themeColour("segment-edge")];
  const veil = themeColour("shared-hatch");
  for (const stretch of stretches) {
    const { segment, x, y, width: across, height: down } = stretch;
    context.fillStyle = hole;
    context.fillRect(x, y, across, down);
    const scale = across / (stretch.end - stretch.begin);
    drawGaps(context, stretch, gaps[stretch.index] ?? []);
    placed.each(stretch, (i, begin, end) => {
      const left = x + (begin - stretch.begin) * scale;
      const size = (end - begin) * scale;
      const isLive = blocks.isLive(i, run.moment);
      const isShown =
        (state.only === null || key.groups[groups[i]] === state.only) &&
        (found === null || found.has(i));
      if (!isLive) context.fillStyle = waiting;
      else if (!isShown) context.fillStyle = dimmed;
      else if (key.by === "tier") context.fillStyle = colours[0];
      else context.fillStyle = colours[groups[i]];
      // If a block is wide enough, one pixel stays free between it and the next block.
      context.fillRect(left, y, Math.max(size - (size > 3 ? 1 : 0), 0.4), down);
      if (blocks.shared[i] > 0 && isLive) {
        const part = (size * blocks.shared[i]) / blocks.size[i];
        if (key.by === "tier" && isShown) {
          context.fillStyle = colours[1];
          context.fillRect(left + size - part, y, part - (size > 3 ? 1 : 0), down);
        }
        hatch(context, left + size - part, y, part, down, veil);
      }
      if (!isLive && size > 3) hatch(context, left, y, size - 1, down, hole);
      if (size > 62 && down >= 13 && isLive && isShown) {
        label(context, formatBytes(blocks.size[i]), left + 5, y + down / 2, "on-group", "halo");
      }
    });
    context.strokeStyle = edge;
    context.lineWidth = 1;
    context.setLineDash(segment.isPrivate ? [3, 2] : []);
    context.strokeRect(x + 0.5, y + 0.5, Math.max(across - 1, 0.5), down - 1);
    context.setLineDash([]);
    if (segment.shared > 0) {
      context.fillStyle = themeColour("shared-line");
      const part = across * (segment.shared / segment.size);
      context.fillRect(x + across - part, y + down - 2, part, 2);
    }
  }
}

/**
 * Draws memory that serves no request. Rounding is solid, fragments are striped, and memory that
 * can go back to the driver is empty.
 * @param {CanvasRenderingContext2D} context
 * @param {Stretch} stretch
 * @param {Gap[]} gaps
 */
function drawGaps(context, stretch, gaps) {
  const { x, y, width, height } = stretch;
  const scale = width / (stretch.end - stretch.begin);
  for (const { kind, begin, end } of gaps) {
    const left = x + (Math.max(begin, stretch.begin) - stretch.begin) * scale;
    const size = x + (Math.min(end, stretch.end) - stretch.begin) * scale - left;
    if (size <= 0) continue;
    if (kind === "rounding") {
      context.fillStyle = themeColour("rounding");
      context.fillRect(left, y, Math.max(size, 0.4), height);
    } else if (kind === "fragment") {
      context.fillStyle = themeColour("fragment");
      context.fillRect(left, y, Math.max(size, 0.4), height);
      if (size > 3) hatch(context, left, y, size, height, themeColour("fragment-line"));
    }
    if (kind === "rounding" || size < 100 || height < 13) continue;
    const name = kind === "free" ? "free" : "fragment";
    label(context, `${name} ${formatBytes(end - begin)}`, left + 5, y + height / 2, "text", "hole");
  }
}

/**
 * Writes words on the map.
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} x
 * @param {number} y The middle of the words.
 * @param {string} colour
 * @param {string} halo
 */
function label(context, text, x, y, colour, halo) {
  context.font = "10px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.lineWidth = halo === "hole" ? 5 : 2.5;
  context.lineJoin = "round";
  context.strokeStyle = themeColour(halo);
  context.fillStyle = themeColour(colour);
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
}

/**
 * Draws stripes in a rectangle.
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 * @param {string} colour
 */
function hatch(context, x, y, width, height, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1.2;
  context.beginPath();
  for (let at = x - height - ((x - height) % 5); at < x + width; at += 5) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}

/**
 * Draws a frame around a block; none for row -1.
 * @param {CanvasRenderingContext2D} context
 * @param {Stretch[]} stretches
 * @param {PlacedBlocks} placed
 * @param {number} row
 * @param {string} colour
 * @param {number} lineWidth
 */
export function outline(context, stretches, placed, row, colour, lineWidth) {
  if (row < 0) return;
  context.strokeStyle = colour;
  context.lineWidth = lineWidth;
  for (const stretch of stretches) {
    placed.each(stretch, (i, begin, end) => {
      if (i !== row) return;
      const scale = stretch.width / (stretch.end - stretch.begin);
      const left = stretch.x + (begin - stretch.begin) * scale;
      const across = Math.max((end - begin) * scale, 3);
      context.strokeRect(left, stretch.y + 1, across, stretch.height - 2);
    });
  }
}
