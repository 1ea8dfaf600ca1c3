// Writes numbers, sizes, times and names as people read them.

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB"];

/**
 * Returns a size such as "512 bytes", "20.00 MiB" or "9.52 GiB".
 * @param {number} bytes
 */
export function formatBytes(bytes) {
  const size = Math.abs(bytes);
  if (size < 1024) return `${formatCount(bytes)} ${size === 1 ? "byte" : "bytes"}`;
  // A size that would round to 1024.00 of a unit is written as 1.00 of the next unit.
  const unit = Math.min(Math.floor(Math.log2(size / 1023.995) / 10) + 1, UNITS.length);
  return `${(bytes / 1024 ** unit).toFixed(2)} ${UNITS[unit - 1]}`;
}

/**
 * Returns a size with its exact bytes: "20.00 MiB (20,971,520 bytes)".
 * @param {number} bytes
 */
export function formatExactly(bytes) {
  return bytes < 1024 ? formatBytes(bytes) : `${formatBytes(bytes)} (${formatCount(bytes)} bytes)`;
}

const COUNT = new Intl.NumberFormat("en-US");

/** @param {number} count */
export function formatCount(count) {
  return COUNT.format(count);
}

/**
 * Returns a count with its noun: "1 block", "2 blocks".
 * @param {number} count
 * @param {string} noun
 */
export function plural(count, noun) {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/**
 * Returns a time given in microseconds: "12 µs", "3.20 ms", "1.250 s", "2 min 5.0 s".
 * @param {number} us
 */
export function formatTime(us) {
  const size = Math.abs(us);
  if (size < 1000) return `${Math.round(us)} µs`;
  if (size < 1e6) return `${(us / 1e3).toFixed(2)} ms`;
  if (size < 120e6) return `${(us / 1e6).toFixed(3)} s`;
  const minutes = Math.floor(us / 60e6);
  return `${formatCount(minutes)} min ${((us - minutes * 60e6) / 1e6).toFixed(1)} s`;
}

/**
 * Returns an address in hexadecimal.
 * @param {bigint} origin
 * @param {number} offset
 */
export function formatAddress(origin, offset) {
  return `0x${(origin + BigInt(offset)).toString(16)}`;
}

/** @param {number} part @param {number} whole */
export function formatShare(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)}%` : "–";
}

/** Returns the path of a file without the folders before its package, if it is in a package. */
export function packagePath(/** @type {string} */ file) {
  return file.replace(/^.*[/\\](?:site|dist)-packages[/\\]/, "");
}

/**
 * Returns a name with each "file:line function" in it shortened to the file without its folders.
 * Other names stay as they are.
 * @param {string} name
 */
export function shortName(name) {
  return name.split(" → ").map(shortPlace).join(" → ");
}

function shortPlace(/** @type {string} */ place) {
  const match = /^(.*):(\d+) (.*)$/.exec(place);
  if (match === null) return place;
  const file = match[1].split(/[/\\]/).at(-1);
  return `${file}:${match[2]} ${match[3]}`;
}
