// Unpacks columns of numbers from the text that columns.py has packed.

/**
 * @typedef {object} PackedColumn
 * @property {number} count The number of numbers.
 * @property {"plain" | "delta"} code How the numbers were brought close to zero.
 * @property {number} base
 * @property {number} step
 * @property {number} planes The number of bytes for each number.
 * @property {number} least
 * @property {number} most
 * @property {string} data The byte planes, deflated, in base64.
 */

/** @typedef {Int32Array | Float64Array} Column */

/**
 * @param {string} text
 * @returns {Promise<Uint8Array>}
 */
async function inflate(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * Returns the whole numbers of a column, as 32-bit integers if all of them fit.
 * @param {PackedColumn} packed
 * @returns {Promise<Column>}
 */
export async function unpackColumn(packed) {
  const { count, planes, base, step, code } = packed;
  const fits = packed.least >= -(2 ** 31) && packed.most < 2 ** 31;
  const values = fits ? new Int32Array(count) : new Float64Array(count);
  if (planes === 0) return values.fill(base);
  const bytes = await inflate(packed.data);
  let sum = base;
  for (let i = 0; i < count; i++) {
    let value = 0;
    for (let plane = planes - 1; plane >= 0; plane--) value = value * 256 + bytes[plane * count + i];
    if (code === "delta") {
      sum += value % 2 === 0 ? value / 2 : -(value + 1) / 2;
      values[i] = sum;
    } else {
      values[i] = base + step * value;
    }
  }
  return values;
}

/**
 * @template {string} Name
 * @param {Record<Name, PackedColumn>} packed
 * @returns {Promise<Record<Name, Column>>}
 */
export async function unpackColumns(packed) {
  const names = /** @type {Name[]} */ (Object.keys(packed));
  const columns = await Promise.all(names.map((name) => unpackColumn(packed[name])));
  const pairs = names.map((name, i) => [name, columns[i]]);
  return /** @type {Record<Name, Column>} */ (Object.fromEntries(pairs));
}

/** Returns the largest of some numbers that are 0 or more; 0 if there are no numbers. */
export function mostOf(/** @type {ArrayLike<number>} */ values) {
  let most = 0;
  for (let i = 0; i < values.length; i++) if (values[i] > most) most = values[i];
  return most;
}
