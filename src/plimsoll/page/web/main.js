// Starts the page: reads the runs in it and shows them, and later the files that the user opens.

import { make } from "./elements/dom.js";
import { Opener } from "./files/opener.js";
import { runsOf } from "./files/page_data.js";
import { Workspace } from "./workspace.js";

/** @import { Run } from "./history/run.js" */

async function start() {
  const { runs, isServed } = await runsOf(document, "This", true);
  /** @type {Run[]} */
  const opened = [...runs];

  /** @type {Workspace} */
  let shown;
  const opener = new Opener(
    isServed,
    async (found) => {
      opened.push(...found);
      // Two runs of one page replace those shown; a single run is shown beside the first one shown.
      await show(found.length > 1 ? found.slice(0, 2) : [shown.runs[0], found[0]]);
    },
    showProblem,
  );
  const show = async (/** @type {Run[]} */ some) => {
    // A run cannot be shown beside itself, because it has only one moment.
    const distinct = [...new Set(some)].slice(0, 2);
    const before = shown.store.state;
    shown.end();
    shown = new Workspace(distinct, library, before);
    await shown.start();
    await shown.complete();
    shown.link.follow();
  };
  const library = { runs: opened, show, open: () => opener.ask() };
  shown = new Workspace(runs, library);
  await shown.start();
  document.body.append(opener.input, opener.veil);
  requestAnimationFrame(() => setTimeout(() => performance.mark("painted")));

  // The browser draws the first picture before the rest is loaded.
  await new Promise((resolve) => setTimeout(resolve));
  for (const run of runs) await run.loadDetails();
  await shown.complete();
  const follow = async () => {
    const problems = await shown.link.read();
    if (problems.length > 0) showProblem(problems.join(" "));
  };
  await follow();
  addEventListener("hashchange", follow);
  document.documentElement.dataset.state = "ready";
}

/** Shows a message at the top of the page that says what went wrong. */
function showProblem(/** @type {unknown} */ reason) {
  document.querySelector(".failure")?.remove();
  const text = reason instanceof Error ? reason.message : String(reason);
  const said = make(
    "p",
    { class: "failure", role: "alert" },
    text,
    make("button", { class: "close", "aria-label": "Close", onclick: () => said.remove() }, "✕"),
  );
  document.body.prepend(said);
}

addEventListener("unhandledrejection", ({ reason }) => showProblem(reason));
start();
