// Finds the extreme of any range of a series in a few steps. Each level joins pairs of the level
// below and keeps the index of the winner, so that a peak is visible at any zoom.

export class Pyramid {
  /**
   * @param {ArrayLike<number>} values
   * @param {1 | -1} sign 1 for the highest, -1 for the lowest.
   */
  constructor(values, sign) {
    this.values = values;
    this.sign = sign;
    /** @type {Uint32Array[]} The levels above the series: indices of winners in the series. */
    this.levels = [];
    let length = values.length;
    while (length > 1) {
      const below = this.levels.at(-1);
      const half = (length + 1) >>> 1;
      const level = new Uint32Array(half);
      for (let i = 0; i < half; i++) {
        const left = below ? below[2 * i] : 2 * i;
        const right = 2 * i + 1 < length ? (below ? below[2 * i + 1] : 2 * i + 1) : left;
        level[i] = this.better(left, right);
      }
      this.levels.push(level);
      length = half;
    }
  }

  /** @param {number} a @param {number} b */
  better(a, b) {
    const ahead = (this.values[b] - this.values[a]) * this.sign;
    return ahead > 0 || (ahead === 0 && b < a) ? b : a;
  }

  /**
   * Returns the index of the extreme from `first` to `last`, both included; the first if several
   * are equal.
   * @param {number} first
   * @param {number} last
   */
  find(first, last) {
    let left = first;
    let right = last;
    let best = first;
    for (let level = -1; left <= right; level++) {
      const winners = level < 0 ? null : this.levels[level];
      if (left % 2 === 1) {
        best = this.better(best, winners ? winners[left] : left);
        left++;
      }
      if (right % 2 === 0 && left <= right) {
        best = this.better(best, winners ? winners[right] : right);
        right--;
      }
      left = left / 2;
      right = (right - 1) / 2;
    }
    return best;
  }
}
