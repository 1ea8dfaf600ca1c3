// The page of all ranks: the answer, the ranks that stand out, and a picture with a row for each
// rank, from which the rank's own page opens.

import { make } from "../elements/dom.js";
import { formatBytes, formatShare, formatTime, formatCount } from "../elements/format.js";
import { applyTheme } from "../elements/theme.js";
import { drawHeat, heatHeight } from "./heat.js";
import { readJob } from "./job.js";

/** @import { Job, JobRank } from "./job.js" */

const STEPS = 100;

async function start() {
  applyTheme("auto");
  const job = await readJob(document.getElementById("data")?.textContent ?? "");
  const length = Math.max(...job.ranks.map((one) => one.length));
  const chosen = { rank: 0, part: 0 };
  const canvas = make("canvas", {
    class: "heat",
    role: "slider",
    tabindex: "0",
    "aria-label": "Memory of all ranks over time",
    "aria-valuemin": "0",
    "aria-valuemax": String(job.ranks.length - 1),
  });
  canvas.style.height = `${heatHeight(job.ranks.length)}px`;
  const told = make("div", { class: "told" });
  const link = make("a", {}, "Open");

  const show = () => {
    drawHeat(canvas, job.ranks, length, chosen);
    const rank = job.ranks[chosen.rank];
    const text = describe(job, rank, chosen.part * length);
    canvas.setAttribute("aria-valuenow", String(chosen.rank));
    canvas.setAttribute("aria-valuetext", text);
    const more = rank.page === null ? make("code", {}, rank.command) : link;
    if (rank.page !== null) link.href = rank.page;
    link.textContent = `Open rank ${rank.rank}`;
    told.replaceChildren(text, " ", more);
  };
  const move = (/** @type {number} */ rank, /** @type {number} */ part) => {
    chosen.rank = Math.min(Math.max(rank, 0), job.ranks.length - 1);
    chosen.part = Math.min(Math.max(part, 0), 1);
    show();
  };
  const choose = (/** @type {PointerEvent | MouseEvent} */ { offsetX, offsetY }) =>
    move(
      Math.floor((offsetY / canvas.clientHeight) * job.ranks.length),
      offsetX / canvas.clientWidth,
    );
  const open = () => {
    const { page } = job.ranks[chosen.rank];
    if (page !== null) location.href = page;
  };
  canvas.addEventListener("pointerdown", choose);
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse") choose(event);
  });
  canvas.addEventListener("dblclick", open);
  canvas.addEventListener("keydown", (event) => {
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => move(chosen.rank + 1, chosen.part),
      ArrowUp: () => move(chosen.rank - 1, chosen.part),
      ArrowRight: () => move(chosen.rank, chosen.part + 1 / STEPS),
      ArrowLeft: () => move(chosen.rank, chosen.part - 1 / STEPS),
      Home: () => move(0, chosen.part),
      End: () => move(job.ranks.length - 1, chosen.part),
      Enter: open,
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  const outliers = job.outliers.map(({ rank, text }) => {
    const place = job.ranks.findIndex((one) => one.rank === rank);
    const go = () => {
      move(place, chosen.part);
      canvas.focus();
    };
    return make("li", {}, make("button", { class: "link", onclick: go }, text));
  });
  document.body.append(
    make("h1", {}, job.answer),
    make("ul", { class: "outliers" }, ...outliers),
    make(
      "p",
      { class: "faint" },
      `${job.folder}: a row for each of ${formatCount(job.ranks.length)} ranks, allocated memory over `,
      `${lengthText(job, length)}. Empty`,
      make("span", { class: "scale", "aria-hidden": "true" }),
      "full. Arrow keys choose a rank and a moment, Enter opens it.",
    ),
    canvas,
    told,
  );
  show();
  addEventListener("resize", show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    applyTheme("auto");
    show();
  });
  document.documentElement.dataset.state = "ready";
}

/** @param {Job} job @param {JobRank} rank @param {number} at */
function describe(job, rank, at) {
  const span = Math.floor((at * rank.most.length) / rank.length);
  const where = `Rank ${rank.rank}${rank.host === null ? "" : ` on ${rank.host}`}`;
  if (at > rank.length) return `${where}: its recording has ended before ${lengthText(job, at)}.`;
  const bytes = rank.most[Math.min(span, rank.most.length - 1)];
  const share = formatShare(bytes, rank.limit);
  return `${where}: ${formatBytes(bytes)} (${share}) allocated at ${lengthText(job, at)}.`;
}

/** @param {Job} job @param {number} length */
function lengthText(job, length) {
  return job.hasTime ? formatTime(length) : `${formatCount(Math.round(length))} events`;
}

start();
