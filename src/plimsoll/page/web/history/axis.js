// The axes of a timeline: the number of an event, or its time.

import { formatCount, formatTime } from "../elements/format.js";

/** @import { Device } from "./device.js" */

/**
 * @typedef {object} Axis
 * @property {string} title
 * @property {(device: Device) => number} length
 * @property {(device: Device, x: number) => number} eventAt Returns the last event at or before
 *   place `x`; -2 if there is none.
 * @property {(device: Device, event: number) => number} placeOf
 * @property {(x: number) => string} format
 * @property {number} least The length of the shortest window.
 */

/** @type {Record<string, Axis>} */
export const AXES = {
  events: {
    title: "Events",
    length: (device) => device.events,
    eventAt: (_device, x) => (x < 0 ? -2 : Math.floor(x)),
    placeOf: (_device, event) => event + 0.5,
    format: (x) => formatCount(Math.round(x)),
    least: 8,
  },
  time: {
    title: "Time",
    length: (device) => device.durationUs,
    eventAt: (device, x) =>
      x < 0 ? -2 : x > device.durationUs ? device.events : device.eventAt(x),
    placeOf: (device, event) => device.timeOf(event),
    format: formatTime,
    least: 10,
  },
};

/**
 * Returns the events at the edges of `columns` equal parts of a window.
 * @param {Axis} axis
 * @param {Device} device
 * @param {{ from: number, to: number }} window
 * @param {number} columns
 */
export function edgesOf(axis, device, window, columns) {
  const edges = new Int32Array(columns + 1);
  const step = (window.to - window.from) / columns;
  for (let c = 0; c <= columns; c++) {
    const event = axis.eventAt(device, window.from + c * step);
    edges[c] = Math.min(event, device.events);
  }
  return edges;
}

/**
 * Returns round values from `from` to `to`, about `most` of them.
 * @param {number} from
 * @param {number} to
 * @param {number} most
 * @param {number} [least] The least distance between two values.
 */
export function ticksBetween(from, to, most, least = 0) {
  const rough = Math.max((to - from) / most, least);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? 10 * power;
  const ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(tick);
  return ticks;
}

/**
 * Returns values from `from` to `to` whose distance is a power of two, about `most` of them.
 * @param {number} from
 * @param {number} to
 * @param {number} most
 */
export function byteTicksBetween(from, to, most) {
  const step = 2 ** Math.max(Math.ceil(Math.log2((to - from) / most)), 0);
  const ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(tick);
  return ticks;
}
