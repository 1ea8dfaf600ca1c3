"""Predicts the same scripts under several versions of PyTorch.

    python benchmarks/versions.py predict FOLDER --results FOLDER   # under the installed PyTorch
    python benchmarks/versions.py table --results FOLDER            # of all versions' results

The first FOLDER holds scripts NAME.py; examples/train_gpt.py is added. `predict` writes the memory
peaks to VERSION.json in the --results folder. `table` prints Markdown for docs/versions.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from pathlib import Path

from plimsoll import InputError
from plimsoll.base.errors import ScriptError
from plimsoll.base.units import MiB
from plimsoll.prediction.predict import predict

ROOT = Path(__file__).parents[1]
GPU = "H100"
Peaks = dict[str, dict[str, int] | str]


def predicted(folder: Path) -> Peaks:
    """Returns the peaks in bytes by script name, or why there are none."""
    found: Peaks = {}
    for path in [ROOT / "examples" / "train_gpt.py", *sorted(folder.glob("*.py"))]:
        try:
            result = predict(path, gpu=GPU)
        except (InputError, ScriptError) as error:
            found[path.stem] = str(error)
        else:
            found[path.stem] = {
                "peak_allocated_bytes": result.peak_allocated_bytes,
                "peak_reserved_bytes": result.peak_reserved_bytes,
            }
        print(path.stem, found[path.stem], flush=True)
    return found


def table(versions: dict[str, Peaks], key: str) -> list[str]:
    """Returns table rows in MiB: one for each script, with a column for each PyTorch version."""
    scripts = dict.fromkeys(script for peaks in versions.values() for script in peaks)
    lines = [f"| script | {' | '.join(versions)} |", "|---" * (len(versions) + 1) + "|"]
    for script in scripts:
        cells = [peaks.get(script) for peaks in versions.values()]
        texts = [f"{c[key] / MiB:.1f}" if isinstance(c, dict) else "fails" for c in cells]
        lines.append(f"| {script} | {' | '.join(texts)} |")
    return lines


def main() -> None:
    """Predicts, or prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["predict", "table"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--results", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.what == "predict":
        version = importlib.metadata.version("torch")
        found = predicted(arguments.folder)
        arguments.results.mkdir(parents=True, exist_ok=True)
        (arguments.results / f"{version}.json").write_text(json.dumps(found, indent=1) + "\n")
        return
    files = sorted(
        arguments.results.glob("*.json"),
        key=lambda path: [int(part) for part in path.stem.split("+")[0].split(".")],
    )
    versions = {path.stem: json.loads(path.read_text()) for path in files}
    for title, key in (("allocated", "peak_allocated_bytes"), ("reserved", "peak_reserved_bytes")):
        print(f"Peak {title}, MiB:\n", *table(versions, key), "", sep="\n")


if __name__ == "__main__":
    main()
