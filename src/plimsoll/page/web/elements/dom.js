// Making elements. Text goes in as text, never as markup: it comes from recordings.

import { shortName } from "./format.js";

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} [properties] `class`, `role`, `aria-*`, `data-*` and such become
 *   attributes, `on*` listeners, all else properties.
 * @param {...(Node | string | null)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on"))
      element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (/^(class|role|for|tabindex|aria-.*|data-.*)$/.test(name)) {
      element.setAttribute(name, String(value));
    } else Reflect.set(element, name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const FOCUSABLE = "button, select, input, summary, [tabindex]";

/**
 * Put other children into an element; what had the focus hands it to what takes its place.
 * @param {HTMLElement} element
 * @param {(Node | string)[]} children
 */
export function refill(element, children) {
  const place = [...element.querySelectorAll(FOCUSABLE)].findIndex(
    (one) => one === document.activeElement,
  );
  element.replaceChildren(...children);
  if (place < 0) return;
  const next = [...element.querySelectorAll(FOCUSABLE)][place];
  if (next instanceof HTMLElement) next.focus({ preventScroll: true });
}

/**
 * The name of a group. Where there is too little room, a source line is cut at its beginning: its
 * end tells it from others.
 * @param {string} style The class of the element.
 * @param {string} name
 */
export function nameOf(style, name) {
  const text = shortName(name);
  if (!/:\d+ /.test(text)) return make("span", { class: style }, text);
  return make("span", { class: `${style} cut-first` }, make("bdi", { dir: "ltr" }, text));
}

/** A small square in a group's colour. */
export function swatch(/** @type {string} */ colour) {
  const square = make("span", { class: "swatch", "aria-hidden": "true" });
  square.style.backgroundColor = colour;
  return square;
}

/**
 * A canvas as large as its element, in the pixels of the device.
 * @param {HTMLCanvasElement} canvas
 */
export function fitCanvas(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== across) canvas.width = across;
  if (canvas.height !== down) canvas.height = down;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height, ratio };
}
