// Handles the pointer on a timeline. A mouse chooses, zooms and moves; one finger moves, and two
// fingers zoom.

/** @import { Actions } from "../actions.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Store } from "../store.js" */
/** @import { Pointer } from "./overlay.js" */
/** @import { Plot } from "./plot.js" */

/**
 * The parts of a timeline that these handlers need.
 * @typedef {object} Pointed
 * @property {HTMLCanvasElement} overlay
 * @property {HTMLElement} tip
 * @property {Plot} plot
 * @property {Pointer} pointer
 * @property {Run} run
 * @property {Store} store
 * @property {Actions} actions
 * @property {() => void} drawOverlay
 * @property {() => void} showTip
 * @property {(x: number) => void} pick
 */

/** A mouse that moves less than this many pixels clicks, and does not drag. */
const LEAST_DRAG = 4;

/** A finger that moves less than this many pixels taps, and does not swipe. */
const LEAST_SWIPE = 9;

/** @param {Pointed} timeline */
export function listenToPointer(timeline) {
  const { overlay, actions, run } = timeline;
  listenToMouse(timeline);
  listenToFingers(timeline);
  overlay.addEventListener("focus", () => actions.activate(run));
}

const isFinger = (/** @type {PointerEvent} */ event) => event.pointerType === "touch";

/** @param {Pointed} timeline */
function listenToMouse(timeline) {
  const { overlay, plot, pointer, store, actions } = timeline;
  overlay.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    if (isFinger(event)) return;
    pointer.place = { x: event.offsetX, y: event.offsetY };
    timeline.drawOverlay();
    timeline.showTip();
  });
  overlay.addEventListener("pointerleave", () => {
    if (pointer.brush !== null) return;
    pointer.place = null;
    timeline.tip.hidden = true;
    timeline.drawOverlay();
  });
  overlay.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0 || isFinger(event)) return;
    overlay.setPointerCapture(event.pointerId);
    pointer.brush = event.offsetX;
  });
  overlay.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => {
    const begin = pointer.brush;
    pointer.brush = null;
    if (begin === null) return;
    const end = event.offsetX;
    if (Math.abs(end - begin) < LEAST_DRAG) timeline.pick(end);
    else if (!event.shiftKey) {
      const [left, right] = [Math.min(begin, end) - plot.left, Math.max(begin, end) - plot.left];
      actions.show(plot.placeAt(Math.max(left, 0)), plot.placeAt(right));
    } else {
      const { from, to } = store.state;
      actions.pan(((begin - end) / plot.width) * (to - from));
    }
    timeline.drawOverlay();
  });
  overlay.addEventListener("pointercancel", () => (pointer.brush = null));
  overlay.addEventListener("dblclick", () => actions.showAll());
  overlay.addEventListener(
    "wheel",
    (/** @type {WheelEvent} */ event) => {
      event.preventDefault();
      const { from, to } = store.state;
      const pixels = event.deltaMode === 1 ? 16 : 1;
      const across = event.shiftKey ? event.deltaY : event.deltaX;
      if (Math.abs(across) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
        actions.pan(((across * pixels) / plot.width) * (to - from));
      } else {
        const factor = Math.exp(event.deltaY * pixels * 0.002);
        actions.zoom(factor, plot.placeAt(event.offsetX - plot.left));
      }
    },
    { passive: false },
  );
}

/**
 * Handles touch. The browser handles vertical swipes itself and scrolls the page (CSS
 * `touch-action: pan-y`); it then sends `pointercancel`.
 * @param {Pointed} timeline
 */
function listenToFingers(timeline) {
  const { overlay, plot, pointer, store, actions } = timeline;
  /** The x of each finger, by the id of its pointer. @type {Map<number, number>} */
  const fingers = new Map();
  /** The x where the only finger touched down; null once it has moved. @type {number | null} */
  let tap = null;
  overlay.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    if (!isFinger(event)) return;
    fingers.set(event.pointerId, event.offsetX);
    tap = fingers.size === 1 ? event.offsetX : null;
  });
  overlay.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    const before = fingers.get(event.pointerId);
    if (before === undefined) return;
    const x = event.offsetX;
    if (tap !== null && Math.abs(x - tap) < LEAST_SWIPE) return;
    tap = null;
    fingers.set(event.pointerId, x);
    const { from, to } = store.state;
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    if (other === undefined) {
      actions.pan(((before - x) / plot.width) * (to - from));
      return;
    }
    // The zoom keeps the place under the other finger where it is.
    const [was, is] = [Math.abs(before - other), Math.abs(x - other)];
    if (was > 1 && is > 1) actions.zoom(was / is, plot.placeAt(other - plot.left));
  });
  const lift = (/** @type {PointerEvent} */ event, /** @type {boolean} */ isDone) => {
    if (!fingers.delete(event.pointerId)) return;
    if (tap === null || !isDone) return;
    tap = null;
    pointer.place = { x: event.offsetX, y: event.offsetY };
    timeline.pick(event.offsetX);
    pointer.place = null;
  };
  overlay.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => lift(event, true));
  overlay.addEventListener("pointercancel", (/** @type {PointerEvent} */ event) =>
    lift(event, false),
  );
}
