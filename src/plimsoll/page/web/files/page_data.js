// Reads the data in a page: in this page, or in another page's file that the user opened.

import { Run } from "../history/run.js";

/** @import { PackedRun } from "../history/run.js" */

/** The version of the data's format; FORMAT in document.py must be equal. */
const FORMAT = 2;

/** @typedef {{ format: number, first_device: number, served: boolean, runs: PackedRun[] }} PackedPage */

/**
 * Returns the runs of a page.
 * @param {Document} page
 * @param {string} name The name of the page's file, for messages.
 * @param {boolean} canAsk Whether this page can ask the other page's server, if that has one.
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
