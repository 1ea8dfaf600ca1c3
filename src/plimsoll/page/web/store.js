// The store keeps the state of the page. Listeners redraw the page when it changes; they are called
// once for all changes before the browser's next frame.

/**
 * @typedef {object} State
 * @property {string} key The grouping of blocks that gives memory its colours.
 * @property {string} axis
 * @property {number} from The place on the axis where the window begins; it ends at `to`.
 * @property {number} to
 * @property {boolean} isFitted Whether the scale of bytes is chosen for the window alone. Otherwise
 * it is chosen for the whole history.
 * @property {string | null} only The only group that is shown in colour; null to show all.
 * @property {string} view The view that is shown.
 * @property {string} layout The map's layout.
 * @property {string} flameForm How call stacks are shown.
 * @property {string} theme
 * @property {string} search
 * @property {boolean} isEverywhere Whether the search goes through the whole history.
 * @property {number} panel The index of the run that keys act on.
 */

/** @typedef {(changed: Set<string>) => void} Listener */

export class Store {
  /** @param {State} state */
  constructor(state) {
    this.state = state;
    /** @type {Listener[]} */
    this.listeners = [];
    /** @type {Set<string>} */
    this.changed = new Set();
  }

  /** @param {Partial<State>} changes */
  set(changes) {
    const names = /** @type {(keyof State)[]} */ (Object.keys(changes));
    const changed = names.filter((name) => this.state[name] !== changes[name]);
    Object.assign(this.state, changes);
    for (const name of changed) this.touch(name);
  }

  /** Notes that `name` has changed, so that everything that depends on it is drawn anew. */
  touch(/** @type {string} */ name) {
    if (this.changed.size === 0) requestAnimationFrame(() => this.tell());
    this.changed.add(name);
  }

  tell() {
    const changed = this.changed;
    this.changed = new Set();
    for (const listener of this.listeners) listener(changed);
  }

  /** Removes all listeners. */
  stop() {
    this.listeners = [];
  }

  /** @param {Listener} listener */
  listen(listener) {
    this.listeners.push(listener);
  }
}
