// Finds the spans of a window: from the overview, or, if the window is short, from its blocks.

import { Detail } from "../history/detail.js";
import { spansFromOverview } from "../history/spans.js";

/** @import { Run } from "../history/run.js" */
/** @import { Spans } from "../history/spans.js" */
/** @import { Store } from "../store.js" */

export class WindowSpans {
  /**
   * @param {Run} run
   * @param {Store} store
   */
  constructor(run, store) {
    this.run = run;
    this.store = store;
    /** @type {Detail | null} */
    this.detail = null;
    this.isAsking = false;
  }

  /**
   * @param {Int32Array} edges See `spansFromOverview`.
   * @returns {Spans}
   */
  find(edges) {
    const { device } = this.run;
    const shown = edges[edges.length - 1] - Math.max(edges[0], 0);
    // If a column has fewer events than a span of the overview, the blocks themselves are used.
    if (device.span > 1 && shown < edges.length * device.span) {
      if (this.detail?.device === device && this.detail.covers(edges)) {
        return this.detail.spans(this.store.state.key, edges);
      }
      if (this.fetch(edges) && this.detail) {
        return this.detail.spans(this.store.state.key, edges);
      }
    }
    return spansFromOverview(device, this.store.state.key, edges);
  }

  /**
   * Gets the blocks around a window; returns whether they are available at once.
   * @param {Int32Array} edges
   */
  fetch(edges) {
    const { device, source } = this.run;
    if (source.inPage === null) return false;
    const first = Math.max(edges[0], 0);
    const last = Math.min(edges[edges.length - 1] + 1, device.events);
    const margin = Math.max(last - first, 2048);
    const begin = Math.max(first - margin, 0);
    const end = Math.min(last + margin, device.events);
    if (source.isLocal) {
      const blocks = source.betweenInPage(begin, end);
      this.detail = new Detail(device, blocks, begin, end, source.isComplete);
      return true;
    }
    if (!this.isAsking) {
      this.isAsking = true;
      source
        .between(begin, end)
        .then((blocks) => {
          this.detail = new Detail(device, blocks, begin, end, true);
          this.store.touch("window");
        })
        .finally(() => (this.isAsking = false));
    }
    return false;
  }
}
