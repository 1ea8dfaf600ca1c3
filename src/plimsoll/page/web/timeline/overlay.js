// Draws what moves over a timeline: the moment, the pointer, the dragged range, and the picked
// block's life.

import { themeColour } from "../elements/colours.js";
import { fitCanvas } from "../elements/dom.js";

/** @import { Plot } from "./plot.js" */

/**
 * @typedef {object} Pointer
 * @property {{ x: number, y: number } | null} place
 * @property {number | null} brush The x where a drag began, in pixels; null without a drag.
 */

/**
 * @param {Plot} plot
 * @param {HTMLCanvasElement} canvas
 * @param {Pointer} pointer
 */
export function drawOverlay(plot, canvas, { place: pointer, brush }) {
  const { run } = plot;
  const { context, width, height } = fitCanvas(canvas);
  context.clearRect(0, 0, width, height);
  context.save();
  context.beginPath();
  context.rect(plot.left - 6, 0, plot.width + 12, height);
  context.clip();
  drawLife(plot, context);
  const x = Math.round(plot.left + plot.xOfEvent(run.moment)) + 0.5;
  context.strokeStyle = context.fillStyle = themeColour("accent");
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x, plot.top - 3);
  context.lineTo(x, plot.top + plot.height);
  context.stroke();
  context.beginPath();
  context.moveTo(x - 5, plot.top - 8);
  context.lineTo(x + 5, plot.top - 8);
  context.lineTo(x, plot.top - 1);
  context.fill();
  if (pointer && brush === null) {
    context.strokeStyle = themeColour("text-2");
    context.lineWidth = 1;
    context.setLineDash([2, 3]);
    context.strokeRect(Math.round(pointer.x) + 0.5, plot.top, 0, plot.height);
    context.setLineDash([]);
  }
  if (pointer && brush !== null) {
    const from = Math.min(brush, pointer.x);
    context.globalAlpha = 0.2;
    context.fillRect(from, plot.top, Math.abs(brush - pointer.x), plot.height);
    context.globalAlpha = 1;
  }
  context.restore();
}

/**
 * Draws the life of the picked block, as a bar at the bottom of the plot.
 * @param {Plot} plot
 * @param {CanvasRenderingContext2D} context
 */
function drawLife(plot, context) {
  const { run } = plot;
  const { card } = run;
  if (!card) return;
  const { top, left, height, width } = plot;
  const from = left + Math.max(plot.xOfEvent(Math.max(card.start, 0)), 0);
  const to = left + Math.min(plot.xOfEvent(Math.min(card.end, run.device.events - 1)), width);
  if (to < left || from > left + width) return;
  context.fillStyle = themeColour("accent");
  context.fillRect(from, top + height - 4, Math.max(to - from, 2), 4);
}
