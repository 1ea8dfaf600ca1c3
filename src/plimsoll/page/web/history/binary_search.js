// Binary search in sorted columns.

/**
 * Returns the first index whose value is greater than `value`; the length if there is none.
 * @param {ArrayLike<number>} values
 * @param {number} value
 */
export function firstAbove(values, value) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}
