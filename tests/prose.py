"""Finds sentences in comments, docstrings and documents that have to be read twice.

    python -m tests.prose                    # the whole project
    python -m tests.prose src/plimsoll/integrations/top   # a folder or files

Each printed row is a sentence to look at, and the reason. The rules see only mechanical faults, so
prose without a row still needs a reader.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.apart import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

CPP = {".h", ".cpp"}
AREAS = {
    "src": ("src/plimsoll/**/*.py",),
    "core and csrc": tuple(
        f"{folder}/**/*{ending}"
        for folder in ("core", "bindings", "preload", "src/plimsoll")
        for ending in sorted(CPP)
    ),
    "docs": ("*.md", "docs/**/*.md"),
}
_LONGEST_SENTENCE = 40  # in words
_FEWEST_WORDS = 4  # a sentence of at most this many words needs no verb

_NO_SUBJECT = re.compile(
    r"(Of|Likewise|Whose|The same|As (many|much|far|it|they|of|ever)|(With|From|Beyond|Without)"
    r" (which|what)|(That|Those) of|Also (of|in|where)|But for|So of|Nor)\b"
)
_NOUN_CLAUSE = re.compile(r"What\b|(Where|Who|Whom)\b[^,?:]*$")
_NO_ACTOR = re.compile(r"\b(nobody|somebody|anybody|others'|another one's)\b", re.I)
_IDIOM = re.compile(
    r"\b(hangs? on|hung on|goes? on in|measured were|(is|are|was) (said|told)|is asked of|likewise"
    r"|thereby|whereby|therein|stands? for|stood for|of its own making|comes? to lie|by turns"
    r"|as ever|be it|all else|in view of|accounts? for itself|is spent|so many|so long for)\b",
    re.I,
)
_COLON_CHAIN = re.compile(r":\s[^:`]{3,60}:\s[^:`]{3,}")
_CODE = re.compile(r"`[^`]*`|\"[^\"]*\"")

# Base forms of verbs, and irregular forms. A word that is also a noun counts as a verb. So the
# rule overlooks some sentences without a verb, but rarely flags a sentence that has one.
_VERBS = """
accept accumulate add adopt agree align allocate allow answer appear append apply ask assert assume
avoid become begin behave belong break build call cancel capture carry change check choose clean
clear close collect combine come compare compile complete compute consist contain continue convert
copy count cover create cut decide declare define delay delete depend describe differ disappear
divide do draw drop end enter equal estimate evict exceed exchange execute exist exit expand expect
explain export extend fail fall feed fetch fill find finish fit fix fold follow forget fork free
gather get give go grow guess hand happen have help hide hold ignore imply import include increase
inherit insert install instantiate interrupt invent join keep kill know lack last launch lead learn
leave lend let lie like limit listen link list live load lock look lose make map mark match mean
measure meet merge mirror miss move multiply name need note number offer omit open order own owe
pad pass pause pay pin place plan point poll pool prefer prepare prevent print produce promise
protect put queue raise reach read receive record recompute reduce refer refuse register release
rely remain remember remove rename repeat replace replay report represent request require reserve
reset resolve respect restore resume return reuse reveal round run save say schedule search see
seem select send separate serve set share shift show shrink sign simulate skip solve sort spawn
spill split spread stand start stay step stop store stretch subtract suffice suggest sum support
swap switch synchronize take tell terminate test think throw touch track translate treat trust try
turn unmap unpack update use vary verify wait wake walk want warn watch win work wrap write yield
"""
_IRREGULAR = """
am are be been began begun bought broke broken brought built came can cannot chose chosen could cut
did does done drew drawn fell felt found gave given goes gone got grew had has held hid is kept
knew known laid lain lay led left lent let lies lost made may meant met might must ought paid put
ran rose said sat saw seen sent shall should shown shut slept spent split spoke stood thought threw
thrown told took taken undone understood was were will won woke would wrote written
"""


def _forms(verb: str) -> Iterator[str]:
    """Yields a regular verb's base form, third person and past."""
    yield verb
    stem = verb[:-1] if verb.endswith("y") and verb[-2] not in "aeiou" else None
    if stem is not None:
        yield from (stem + "ies", stem + "ied")
    elif verb.endswith(("s", "x", "z", "ch", "sh", "o")):
        yield from (verb + "es", verb + "ed")
    else:
        yield from (verb + "s", verb + ("d" if verb.endswith("e") else "ed"))
        yield verb + verb[-1] + "ed"


_VERB_FORMS = {form for verb in _VERBS.split() for form in _forms(verb)} | set(_IRREGULAR.split())


def _has_no_verb(text: str) -> bool:
    if not re.match(r"[A-Z]|this\b", text):
        return False  # headings, formulas and signatures need no verb
    words = re.findall(r"[a-z]+(?:n't|'s|'re|'ve|'ll)?", text.lower())
    return len(words) > _FEWEST_WORDS and not any(
        word in _VERB_FORMS or word.endswith(("n't", "'re", "'ll", "'ve")) for word in words
    )


RULES: dict[str, Callable[[str], object]] = {
    "begins without a subject": _NO_SUBJECT.match,
    "a noun clause instead of a sentence": _NOUN_CLAUSE.match,
    "no actor": _NO_ACTOR.search,
    "an idiom that is not English": _IDIOM.search,
    "a chain of colons": _COLON_CHAIN.search,
    "more than one thought": lambda text: text.count("; ") > 1,
    f"more than {_LONGEST_SENTENCE} words": lambda text: len(text.split()) > _LONGEST_SENTENCE,
}
OF_WHOLE_SENTENCES: dict[str, Callable[[str], object]] = {"no verb": _has_no_verb}
"""Rules for text that explains. They do not apply where a noun phrase is enough, as for a value."""


@dataclass(frozen=True)
class Paragraph:
    """The lines of one paragraph.

    Attributes:
        lines: Each line's number in the file, and its text.
        may_be_noun_phrase: Whether a noun phrase is enough, as for a plain value.
    """

    lines: list[tuple[int, str]]
    may_be_noun_phrase: bool = False

    def sentences(self) -> Iterator[tuple[int, str]]:
        """Yields each sentence with the number of the line on which it begins."""
        text = " ".join(line for _, line in self.lines)
        begin = 0
        for end in [*(m.end() for m in re.finditer(r"[.!?]\s+(?=[A-Z`\"(])", text)), len(text)]:
            sentence = text[begin:end].strip()
            if sentence:
                yield self._line_at(begin), sentence
            begin = end

    def _line_at(self, place: int) -> int:
        for number, line in self.lines:
            if place <= len(line):
                return number
            place -= len(line) + 1
        return self.lines[-1][0]


@dataclass(frozen=True)
class Flagged:
    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.rule}: {self.text[:110]}"


def paragraphs_of(path: Path) -> Iterator[Paragraph]:
    """Yields the prose of a Python, C++ or Markdown file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _docstrings(text)
        yield from _joined(_python_comments(text), describe_values=False)
    elif path.suffix in CPP:
        yield from _joined(_cpp_comments(text), describe_values=path.suffix == ".h")
    else:
        yield from _markdown(text)


def flagged_in(path: Path) -> tuple[list[Flagged], int]:
    """Returns the flagged sentences of a file, and the number of its lines of prose."""
    found, lines = [], 0
    for paragraph in paragraphs_of(path):
        lines += len(paragraph.lines)
        rules = RULES if paragraph.may_be_noun_phrase else RULES | OF_WHOLE_SENTENCES
        for number, sentence in paragraph.sentences():
            words = _CODE.sub("this", sentence)
            rule = next((name for name, breaks in rules.items() if breaks(words)), None)
            if rule is not None:
                found.append(Flagged(path, number, rule, sentence))
    return found, lines


def files_of(area: str) -> list[Path]:
    """Returns the files of an area, without the Chinese documents."""
    found = {path for pattern in AREAS[area] for path in ROOT.glob(pattern)}
    return sorted(path for path in found if ".zh." not in path.name)


def share_of(area: str) -> tuple[float, list[Flagged]]:
    """Returns what percentage of an area's prose lines is flagged, and the flagged sentences."""
    flagged, lines = [], 0
    for path in files_of(area):
        found, count = flagged_in(path)
        flagged += found
        lines += count
    return 100 * len({(each.path, each.line) for each in flagged}) / lines, flagged


def _docstrings(text: str) -> Iterator[Paragraph]:
    """Yields the paragraphs of docstrings, and of the strings below attributes."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(), lineno=first, end_lineno=last)):
                    yield from _docstring(text.splitlines()[first - 1 : last], first)


def _docstring(lines: list[str], first: int) -> Iterator[Paragraph]:
    paragraph: list[tuple[int, str]] = []
    for number, raw in enumerate(lines, first):
        line = re.sub(r'^r?"""|"""$', "", raw.strip()).strip()
        is_example = line.startswith((">>>", "..."))
        begins = re.match(r"(?:- |\w[\w., *]*: )", line) if number > first else None
        if not line or is_example or begins or line in ("Args:", "Returns:", "Raises:"):
            if paragraph:
                yield Paragraph(paragraph, may_be_noun_phrase=True)
            paragraph = []
            line = "" if is_example or line.endswith(":") else line[begins.end() if begins else 0 :]
        if line and line != "Attributes:":
            paragraph.append((number, line))
    if paragraph:
        yield Paragraph(paragraph, may_be_noun_phrase=True)


@dataclass(frozen=True)
class _Comment:
    number: int
    column: int
    text: str
    is_alone: bool


def _python_comments(text: str) -> Iterator[_Comment]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            words = token.string.lstrip("#").strip()
            if not re.match(r"(type|fmt|noqa|ruff|pragma|mypy)\b|!", words):
                (number, column), is_alone = token.start, not token.line[: token.start[1]].strip()
                yield _Comment(number, column, re.sub(r"\s+# (noqa|type).*", "", words), is_alone)


def _cpp_comments(text: str) -> Iterator[_Comment]:
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r'((?:[^"/]|"(?:\\.|[^"\\])*"|/(?!/))*)//+(.*)', line)
        if found and not found[2].strip().startswith(("namespace", "NOLINT", "clang-format")):
            yield _Comment(number, len(found[1]), found[2].strip(), not found[1].strip())


def _joined(comments: Iterable[_Comment], *, describe_values: bool) -> Iterator[Paragraph]:
    """Yields each run of adjacent comment lines as one paragraph.

    Args:
        comments: The comments of a file, in their order.
        describe_values: Whether a noun phrase is enough in a comment on its own line. It is always
            enough behind code and on the first line of a file.
    """
    lines: list[tuple[int, str]] = []
    may_describe = True
    last: _Comment | None = None
    for comment in comments:
        continues = (
            last is not None
            and comment.number == last.number + 1
            and comment.column == last.column
            and comment.is_alone
            and not comment.text.startswith("- ")
            and last.text
        )
        if lines and not continues:
            yield Paragraph(lines, may_describe)
            lines = []
        if not lines:
            may_describe = describe_values or not comment.is_alone or comment.number == 1
        if comment.text:
            lines.append((comment.number, comment.text.removeprefix("- ")))
        last = comment
    if lines:
        yield Paragraph(lines, may_describe)


def _markdown(text: str) -> Iterator[Paragraph]:
    lines: list[tuple[int, str]] = []
    is_code = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        is_prose = not is_code and not line.startswith(("#", "|", "    ", "<", "```", "!["))
        is_new = bool(re.match(r"\s*([-*]|\d+\.) ", line))
        if lines and (is_new or not is_prose or not line.strip()):
            yield Paragraph(lines)
            lines = []
        if is_prose and line.strip("-*_ "):
            lines.append((number, re.sub(r"^\s*([-*]|\d+\.) ", "", line).strip()))


def main(names: list[str]) -> None:
    """Prints the flagged sentences of files and folders, or of the whole project."""
    chosen = [Path(name).resolve() for name in names] or [ROOT]
    every = [path for area in AREAS for path in files_of(area)]
    paths = [path for path in every if any(path.is_relative_to(each) for each in chosen)]
    flagged, lines = [], 0
    for path in paths:
        found, count = flagged_in(path)
        flagged += found
        lines += count
    for each in flagged:
        print(each)
    print(f"\n{len(flagged)} sentences to look at, in {lines} lines of prose")
    for rule, count in Counter(each.rule for each in flagged).most_common():
        print(f"  {count:5}  {rule}")


if __name__ == "__main__":
    main(sys.argv[1:])
