// Opens further files on this page, by drag and drop or by the button: pages that `plimsoll view`
// wrote, and, if a server serves this page, recordings.

import { make } from "../elements/dom.js";
import { runsOf } from "./page_data.js";

/** @import { Run } from "../history/run.js" */

export class Opener {
  /**
   * @param {boolean} isServed Whether a server serves this page.
   * @param {(runs: Run[]) => Promise<void>} onRuns
   * @param {(problem: unknown) => void} onProblem
   */
  constructor(isServed, onRuns, onProblem) {
    this.isServed = isServed;
    this.onRuns = onRuns;
    this.onProblem = onProblem;
    this.input = make("input", {
      type: "file",
      multiple: true,
      hidden: true,
      "aria-label": "Files to open",
      onchange: () => this.openAll([...(this.input.files ?? [])]),
    });
    this.veil = make(
      "div",
      { class: "drop", hidden: true, "aria-hidden": "true" },
      isServed ? "Drop recordings or pages to compare" : "Drop a page of plimsoll view to compare",
    );
    this.listen();
  }

  /** Lets the user choose files. */
  ask() {
    this.input.value = "";
    this.input.click();
  }

  listen() {
    const hasFiles = (/** @type {DragEvent} */ event) =>
      event.dataTransfer?.types.includes("Files") ?? false;
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.veil.hidden = false;
    });
    document.addEventListener("dragleave", (event) => {
      if (event.relatedTarget === null) this.veil.hidden = true;
    });
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.veil.hidden = true;
      this.openAll([...(event.dataTransfer?.files ?? [])]);
    });
  }

  /** @param {File[]} files */
  async openAll(files) {
    for (const file of files) {
      try {
        await this.onRuns(await this.open(file));
      } catch (problem) {
        this.onProblem(problem);
      }
    }
  }

  /**
   * @param {File} file
   * @returns {Promise<Run[]>}
   */
  async open(file) {
    const begin = await file.slice(0, 15).text();
    if (begin.toLowerCase() === "<!doctype html>")
      return this.read(await file.text(), file.name, false);
    if (!this.isServed) {
      throw new Error(
        `${file.name} is no page of plimsoll view's. Recordings can be opened where plimsoll view --serve shows the page; ` +
          "or write their page first, with plimsoll view.",
      );
    }
    const address = `recordings?name=${encodeURIComponent(file.name)}`;
    const answer = await fetch(address, { method: "POST", body: file }).catch(() => null);
    if (answer === null) throw new Error("The server behind this page does not answer any more.");
    const text = await answer.text();
    if (!answer.ok) throw new Error(text.trim());
    return this.read(text, file.name, true);
  }

  /**
   * Reads the runs out of a page's text; no script in the page runs.
   * @param {string} text
   * @param {string} name
   * @param {boolean} isServed
   */
  async read(text, name, isServed) {
    const page = new DOMParser().parseFromString(text, "text/html");
    try {
      const { runs } = await runsOf(page, name, isServed);
      for (const run of runs) await run.loadDetails();
      return runs;
    } catch (problem) {
      // This program throws plain Errors with a message for people. Any other class of error means
      // that the page's data are damaged.
      if (problem instanceof Error && problem.constructor === Error) throw problem;
      throw new Error(`${name} is damaged.`);
    }
  }
}
