// Binary search in columns that never fall.

/**
 * The first index whose value is more than `value`.
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
