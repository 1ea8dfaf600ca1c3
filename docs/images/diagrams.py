"""Draws each diagram of this folder, NAME.mmd, as NAME.svg. Needs mermaid's script and Chromium.

    npm install --prefix build/mermaid mermaid@11.17.2
    python docs/images/diagrams.py build/mermaid/node_modules/mermaid/dist/mermaid.min.js

A picture loads nothing from the network. Its white background makes it readable in both themes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
SETTINGS = {
    "theme": "neutral",
    "htmlLabels": False,  # a picture in a page may not hold HTML
    "fontFamily": "sans-serif",
    "flowchart": {"htmlLabels": False, "useMaxWidth": False},
    "sequence": {"useMaxWidth": False},
    "block": {"useMaxWidth": False},
}
_DRAW = """async ([name, text, settings]) => {
  mermaid.initialize({ startOnLoad: false, ...settings });
  const holder = document.createElement("div");
  holder.innerHTML = (await mermaid.render(name, text)).svg;
  holder.firstChild.style.background = "white";
  return new XMLSerializer().serializeToString(holder.firstChild);
}"""


def main() -> None:
    """Draws them all."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--headless", "--no-sandbox"]
        )
        page = browser.new_page()
        page.add_script_tag(path=sys.argv[1])
        for source in sorted(HERE.glob("*.mmd")):
            text = source.read_text(encoding="utf-8")
            picture = page.evaluate(_DRAW, [source.stem, text, SETTINGS])
            source.with_suffix(".svg").write_text(f"{picture}\n", encoding="utf-8")
        browser.close()


if __name__ == "__main__":
    main()
