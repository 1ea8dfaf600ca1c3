"""Joins the page's files, in `web/`, into one HTML text with one style sheet and one script.

`web/index.html` is the page of a recording, and `web/ranks.html` is the page of many ranks. Each
page names its style sheets, in order, and the module that starts the page's script.

Modules import each other with `import { names } from "./module.js";`. They export functions,
classes and constants where they declare them. Other forms of import or export, import cycles, and
imports of missing names are errors. In the script each module becomes a function that returns the
module's exports. An imported module stands before the modules that import it. Names that a module
does not export stay private. JSDoc comments on lines of their own are left out.

Browsers could load the modules from an import map of data: URLs. But the page's policy allows
scripts only by hash, so the import map would need `integrity`. Browsers support that only since
2024 or 2025; older browsers would show an empty page. So this file joins the modules.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "web"
_STYLES = re.compile(r'(?:<link rel="stylesheet" href="[\w./]+">\n)+')
_STYLE = re.compile(r'href="([\w./]+)"')
_SCRIPT = re.compile(r'<script type="module" src="([\w./]+)"></script>')

_TYPES = re.compile(r"^[ \t]*/\*\*(?:(?!\*/).)*\*/\n", re.MULTILINE | re.DOTALL)
_IMPORT = re.compile(r'^import \{([\w\s,]*)\} from "(\.[\w./]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^\s*(?:import|export)\b.*|\bimport\s*[(.].*", re.MULTILINE)


@cache
def page_template(name: str = "index.html") -> str:
    """Returns a page without data. The caller replaces @DATA@ and @CONNECT@ in it.

    Args:
        name: "index.html" for recordings, or "ranks.html" for all ranks of a job.
    """
    page = (_FOLDER / name).read_text("utf-8")
    modules = {
        path.relative_to(_FOLDER).as_posix(): path.read_text("utf-8")
        for path in _FOLDER.rglob("*.js")
    }
    (first,) = _SCRIPT.findall(page)
    (links,) = _STYLES.findall(page)
    script = join_modules(modules, first)
    style = "\n".join((_FOLDER / name).read_text("utf-8") for name in _STYLE.findall(links))
    page = page.replace("@SCRIPT_HASH@", _hash(script), 1)
    page = page.replace("@STYLE_HASH@", _hash(style), 1)
    page = page.replace(links, f"<style>{style}</style>\n", 1)
    return _SCRIPT.sub(lambda _: f'<script type="module">{script}</script>', page)


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def join_modules(modules: dict[str, str], first: str) -> str:
    """Joins ES modules into one script for a page.

    Args:
        modules: The text of each module, by its path.
        first: The path of the module that runs first.

    Raises:
        ValueError: If a module uses a form of import or export that this file does not support,
            imports a missing name, or is part of an import cycle.
    """
    names: dict[str, str] = {}
    exports: dict[str, list[str]] = {}
    joined: list[str] = []

    def add(path: str, importers: tuple[str, ...]) -> None:
        if path in importers:
            raise ValueError(f"a circle of imports: {' → '.join((*importers, path))}")
        if path in names:
            return
        if path not in modules:
            raise ValueError(f"{importers[-1]} imports {path}, which is not there")
        text = _TYPES.sub("", modules[path])
        folder = posixpath.dirname(path)
        imports = [
            (posixpath.normpath(posixpath.join(folder, source)), [*re.findall(r"\w+", wanted)])
            for wanted, source in _IMPORT.findall(text)
        ]
        for imported, wanted in imports:
            add(imported, (*importers, path))
            if missing := set(wanted) - set(exports[imported]):
                raise ValueError(f"{path} imports {sorted(missing)}, not exported by {imported}")
        names[path] = f"${len(names)}"
        exports[path] = _EXPORT.findall(text)
        body = _EXPORT.sub("", _IMPORT.sub("", text))
        if other := _OTHER.search(body):
            raise ValueError(f"{path} imports or exports in an unknown way: {other[0].strip()}")
        head = "".join(f"const {{ {', '.join(some)} }} = {names[one]};\n" for one, some in imports)
        end = f"return {{ {', '.join(exports[path])} }};\n"
        joined.append(f"const {names[path]} = (() => {{ // {path}\n{head}{body}{end}}})();\n")

    add(first, ())
    return "".join(joined).replace("</script", "<\\/script").replace("<!--", "<\\!--")
