// What the page shows now. Whoever shows something listens; changes of one frame are told together.

/**
 * @typedef {object} State
 * @property {string} key By what memory is coloured.
 * @property {string} axis
 * @property {number} from The window, on the axis.
 * @property {number} to
 * @property {boolean} isFitted Whether the height shows what the window needs, or all.
 * @property {string | null} only The one group that is shown in colour.
 * @property {string} view Which of the views is shown.
 * @property {string} layout Of the map.
 * @property {string} flameForm How call stacks are shown.
 * @property {string} theme
 * @property {string} search
 * @property {boolean} isEverywhere Whether the search goes through the whole history.
 * @property {number} panel The run that keys act on.
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

  /** Have everything that depends on `name` drawn anew. */
  touch(/** @type {string} */ name) {
    if (this.changed.size === 0) requestAnimationFrame(() => this.tell());
    this.changed.add(name);
  }

  tell() {
    const changed = this.changed;
    this.changed = new Set();
    for (const listener of this.listeners) listener(changed);
  }

  /** Tell nobody any more. */
  stop() {
    this.listeners = [];
  }

  /** @param {Listener} listener */
  listen(listener) {
    this.listeners.push(listener);
  }
}
