// Draws what lies around and over the bands of a timeline: grid, lines, names and marks.

import { themeColour } from "../elements/colours.js";
import { formatBytes, shortName } from "../elements/format.js";
import { AXES, byteTicksBetween, ticksBetween } from "../history/axis.js";
import { placesForNames } from "./bands.js";
import { foremost, MARKS } from "./marks.js";

/** @import { Spans } from "../history/spans.js" */
/** @import { Crowd } from "./marks.js" */
/** @import { Plot } from "./plot.js" */

/**
 * Draws lines and labels for bytes, and ticks and labels along the axis.
 * @param {Plot} plot
 * @param {CanvasRenderingContext2D} context
 */
export function drawGrid(plot, context) {
  const { left, top, width, height } = plot;
  const { from, to } = plot.store.state;
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = themeColour("text-2");
  context.strokeStyle = themeColour("grid");
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const bytes of byteTicksBetween(plot.low, plot.high, Math.max(height / 36, 2))) {
    const y = Math.round(plot.yOf(bytes)) + 0.5;
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(left + width, y);
    context.stroke();
    context.fillText(bytes === 0 ? "0" : formatBytes(bytes).replace(/\.?0+ /, " "), left - 6, y);
  }
  if (plot.low) {
    context.fillText("not from 0", left - 6, top + height + 11);
  }
  context.textBaseline = "top";
  const ticks = ticksBetween(from, to, Math.max(width / 110, 2), plot.axis === AXES.events ? 1 : 0);
  for (const tick of ticks) {
    const x = left + plot.xOf(tick);
    context.textAlign = x < left + 20 ? "left" : x > left + width - 30 ? "right" : "center";
    context.fillText(plot.axis.format(tick), x, top + height + 5);
    context.fillRect(Math.round(x), top + height, 1, 3);
  }
}

/**
 * Draws the lines of the least live memory, of reserved memory, and of shared memory.
 * @param {Plot} plot
 * @param {CanvasRenderingContext2D} context
 * @param {Spans} spans
 * @param {number} ratio
 */
export function drawLines(plot, context, spans, ratio) {
  /**
   * @param {Float64Array} values
   * @param {string} colour
   * @param {number} width
   * @param {number[]} dash
   */
  const line = (values, colour, width, dash) => {
    context.save();
    context.beginPath();
    context.rect(plot.left, plot.top - 1, plot.width, plot.height + 2);
    context.clip();
    context.beginPath();
    let isDown = false;
    for (let c = 0; c < spans.length; c++) {
      if (spans.event[c] < 0) {
        isDown = false;
        continue;
      }
      const x = plot.left + (c + 0.5) / ratio;
      const y = plot.yOf(values[c]);
      if (isDown) context.lineTo(x, y);
      else context.moveTo(x, y);
      isDown = true;
    }
    context.strokeStyle = themeColour(colour);
    context.lineWidth = width;
    context.setLineDash(dash);
    context.stroke();
    context.restore();
  };
  line(spans.low, "low-line", 1, []);
  line(spans.reserved, "reserved-line", 1.5, []);
  nameLine(plot, context, spans.reserved, spans, "reserved", "reserved-line");
  if (plot.run.device.sharedPeak === 0) return;
  line(spans.shared, "shared-line", 1.5, [5, 3]);
  nameLine(plot, context, spans.shared, spans, "in shared memory", "shared-line");
}

/**
 * Writes the name and last value of a line at its right end.
 * @param {Plot} plot
 * @param {CanvasRenderingContext2D} context
 * @param {Float64Array} values
 * @param {Spans} spans
 * @param {string} name
 * @param {string} colour
 */
function nameLine(plot, context, values, spans, name, colour) {
  let last = spans.length - 1;
  while (last > 0 && spans.event[last] < 0) last--;
  const y = plot.yOf(values[last]);
  if (y < plot.top || y > plot.top + plot.height || values[last] === 0) return;
  context.font = "600 11px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = y > plot.top + 14 ? "bottom" : "top";
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeStyle = themeColour("panel");
  context.fillStyle = themeColour(colour);
  const x = plot.left + ((last + 1) / spans.length) * plot.width - 4;
  const text = `${name} ${formatBytes(values[last])}`;
  context.strokeText(text, x, y > plot.top + 14 ? y - 2 : y + 3);
  context.fillText(text, x, y > plot.top + 14 ? y - 2 : y + 3);
}

/**
 * Writes the names of groups into bands with enough room, so that bands differ not only by colour.
 * @param {Plot} plot
 * @param {CanvasRenderingContext2D} context
 * @param {Spans} spans
 * @param {number} ratio
 */
export function drawNames(plot, context, spans, ratio) {
  const names = plot.run.device.key(plot.store.state.key).groups;
  context.font = "600 11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "center";
  const { top, height } = plot;
  const yOf = (/** @type {number} */ b) => Math.min(Math.max(plot.yOf(b), top), top + height);
  for (const { group, from, to, y } of placesForNames(spans, yOf, 15)) {
    const name = shortName(names[group] ?? "small blocks, summed up");
    const room = (to - from) / ratio;
    if (context.measureText(name).width + 10 > room) continue;
    const x = plot.left + (from + to) / 2 / ratio;
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeStyle = themeColour("halo");
    context.strokeText(name, x, y);
    context.fillStyle = themeColour("on-group");
    context.fillText(name, x, y);
  }
}

/**
 * @param {Plot} plot
 * @param {CanvasRenderingContext2D} context
 * @param {Crowd[]} crowds
 */
export function drawMarks(plot, context, crowds) {
  const { left, top, width, height } = plot;
  context.save();
  context.beginPath();
  context.rect(left, 0, width, top + height);
  context.clip();
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const { x, moments } of crowds) {
    const { kind } = foremost(moments);
    const { sign, colour } = MARKS[kind];
    context.fillStyle = themeColour(colour);
    context.globalAlpha = kind === "step" ? 0.3 : 0.55;
    const isLone = kind !== "step" || moments.length === 1;
    if (isLone) context.fillRect(Math.round(left + x), top, 1, height);
    context.globalAlpha = 1;
    if (kind === "step") context.fillRect(Math.round(left + x), top - 6, 1, 6);
    else context.fillText(sign, left + x, top - 17);
  }
  context.restore();
}
