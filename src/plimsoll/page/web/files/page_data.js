// What a page carries: this one, or another that was opened on it.

import { Run } from "../history/run.js";

/** @import { PackedRun } from "../history/run.js" */

/** Of the data; see document.py. */
const FORMAT = 2;

/** @typedef {{ format: number, first_device: number, served: boolean, runs: PackedRun[] }} PackedPage */

/**
 * The runs of a page.
 * @param {Document} page
 * @param {string} name Of its file, for messages.
 * @param {boolean} canAsk Whether its server, if it has one, answers this page.
 */
export async function runsOf(page, name, canAsk) {
  const text = page.getElementById("data")?.textContent;
  if (!text) throw new Error(`${name} is no page of plimsoll view's.`);
  /** @type {PackedPage} */
  const packed = JSON.parse(text);
  if (packed.format !== FORMAT) {
    throw new Error(
      `${name} was written by another version of plimsoll: write it anew with plimsoll view.`,
    );
  }
  const isServed = canAsk && packed.served;
  /** @type {Run[]} */
  const runs = [];
  let place = 0;
  for (const one of packed.runs) {
    runs.push(await Run.load(one, page, place, isServed ? packed.first_device + place : null));
    place += one.devices.length;
  }
  return { runs, isServed };
}
