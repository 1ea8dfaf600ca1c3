// The page's theme: light, dark, or the system's.

import { forgetColours } from "./colours.js";

export const THEMES = ["auto", "light", "dark"];

export function applyTheme(/** @type {string} */ theme) {
  const isDark =
    theme === "dark" ||
    (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  forgetColours();
}
