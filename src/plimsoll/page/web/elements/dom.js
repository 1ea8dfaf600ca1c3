// Makes HTML elements. Text, which may come from recordings, is never read as markup.

import { shortName } from "./format.js";

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} [properties] `class`, `role`, `for`, `tabindex`, `aria-*` and
 *   `data-*` become attributes, `on*` become listeners, and all others become properties.
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
 * Replaces the children of an element. If one had the focus, the new one in its place gets it.
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
 * Makes an element with the name of a group. A source line that is too long for its place is cut at
 * the beginning, because lines differ at their end.
 * @param {string} style The class of the element.
 * @param {string} name
 */
export function nameOf(style, name) {
  const text = shortName(name);
  if (!/:\d+ /.test(text)) return make("span", { class: style }, text);
  return make("span", { class: `${style} cut-first` }, make("bdi", { dir: "ltr" }, text));
}

/** Makes a small square in a group's colour. */
export function swatch(/** @type {string} */ colour) {
  const square = make("span", { class: "swatch", "aria-hidden": "true" });
  square.style.backgroundColor = colour;
  return square;
}

/**
 * Gives a canvas as many pixels as its element has on the screen; returns its context and size.
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
