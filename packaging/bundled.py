"""Lists the libraries of other projects that Linux wheels contain.

Writes the licences of these libraries, and an SBOM (a list of the libraries for programs to read).
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

from cyclonedx.builder.this import this_component
from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

SCHEMA = SchemaVersion.V1_6
LLVM_LICENCE = "Apache-2.0 WITH LLVM-exception"


@dataclass(frozen=True)
class Part:
    """A library of another project that is linked into a wheel.

    Attributes:
        name: The project's name.
        version: The library's version.
        licence: The licence, as an SPDX expression.
        text: The whole licence, with its copyright notice.
        url: Where the library comes from, as a package URL.
    """

    name: str
    version: str
    licence: str
    text: str
    url: PackageURL


def bundled_parts(interpreter: Path, zig: Path, pytorch: dict[str, str]) -> list[Part]:
    """Returns the libraries of other projects in a wheel that is built with these programs.

    Args:
        interpreter: The Python of the building environment, which has nanobind.
        zig: The zig program of the package ziglang.
        pytorch: Maps a release of PyTorch to the text of its licence. The wheel's libraries are
            compiled with the headers of these releases.
    """
    ask = "import nanobind; print(nanobind.__version__, nanobind.__path__[0])"
    version, found = _output(str(interpreter), "-c", ask).split(maxsplit=1)
    nanobind = Path(found)
    (licence,) = nanobind.parent.glob(f"nanobind-{version}.dist-info/**/LICENSE")
    robin_map = nanobind / "ext" / "robin_map" / "include" / "tsl"
    clang = re.search(r"clang version ([\d.]+)", _output(str(zig), "c++", "--version"))
    assert clang is not None
    zig_version = _output(str(zig), "version")
    parts = [
        Part("nanobind", version, "BSD-3-Clause", licence.read_text(),
             PackageURL("pypi", name="nanobind", version=version)),
        _robin_map(robin_map),
        Part("zig-compiler-rt", zig_version, "MIT", (zig.parent / "LICENSE").read_text(),
             PackageURL("pypi", name="ziglang", version=zig_version)),
    ]  # fmt: skip
    for release, text in pytorch.items():
        url = PackageURL("pypi", name="torch", version=release)
        parts.append(Part("torch", release, "BSD-3-Clause", text, url))
    for name in ("libcxx", "libcxxabi", "libunwind"):
        text = (zig.parent / "lib" / name / "LICENSE.TXT").read_text()
        url = PackageURL("github", "llvm", "llvm-project", f"llvmorg-{clang[1]}", subpath=name)
        parts.append(Part(name, clang[1], LLVM_LICENCE, text, url))
    return parts


def _robin_map(headers: Path) -> Part:
    """Returns robin-map: its licence is in a header's first comment, its version in macros."""
    comment = (headers / "robin_map.h").read_text().split("*/")[0]
    text = "\n".join(line.lstrip("/* ").rstrip() for line in comment.splitlines()).strip() + "\n"
    macros = (headers / "robin_growth_policy.h").read_text()
    version = ".".join(re.findall(r"define TSL_RH_VERSION_\w+ (\d+)", macros))
    url = PackageURL("github", "tessil", "robin-map", f"v{version}")
    return Part("robin-map", version, "MIT", text, url)


def write_licences(parts: list[Part], source: Path) -> None:
    """Writes the licences beside the project's own, so that `license-files` includes them."""
    for part in parts:
        (source / f"LICENSE-{part.name}").write_text(part.text)


def write_sbom(parts: list[Part], source: Path, folder: Path) -> Path:
    """Writes a CycloneDX bill of materials for the wheel, as PEP 770 says, and returns its path."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    licences = LicenseFactory()
    bom = Bom()
    bom.metadata.tools.components.add(this_component())
    whole = Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        licenses=[licences.make_from_string("Apache-2.0")],
        purl=PackageURL("pypi", name=name, version=version),
        bom_ref=name,
    )
    bom.metadata.component = whole
    components = [
        Component(
            name=part.name,
            version=part.version,
            type=ComponentType.LIBRARY,
            licenses=[licences.make_from_string(part.licence)],
            purl=part.url,
            bom_ref=str(part.url),
        )
        for part in parts
    ]
    bom.components.update(components)
    bom.register_dependency(whole, components)
    text = make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2)
    if problem := JsonStrictValidator(SCHEMA).validate_str(text):
        raise ValueError(f"the bill of materials is not valid: {problem}")
    path = folder / f"{name}.cdx.json"
    path.write_text(text)
    return path


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()
