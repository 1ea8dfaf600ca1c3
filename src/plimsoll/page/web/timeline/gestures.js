// What the pointer does on a timeline: choose, zoom, move.

/** @import { Actions } from "../actions.js" */
/** @import { Run } from "../history/run.js" */
/** @import { Store } from "../store.js" */
/** @import { Pointer } from "./overlay.js" */
/** @import { Plot } from "./plot.js" */

/**
 * What of a timeline answers the pointer.
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

/** @param {Pointed} timeline */
export function listenToPointer(timeline) {
  const { overlay, plot, pointer, store, actions, run } = timeline;
  overlay.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
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
    if (event.button !== 0) return;
    overlay.setPointerCapture(event.pointerId);
    pointer.brush = event.offsetX;
  });
  overlay.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => {
    const begin = pointer.brush;
    pointer.brush = null;
    if (begin === null) return;
    const end = event.offsetX;
    if (Math.abs(end - begin) < 4) timeline.pick(end);
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
  overlay.addEventListener("focus", () => actions.activate(run));
}
