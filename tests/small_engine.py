"""Installs the small engine of `tests/programs` as the package `vllm`, in a folder of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulated import PROGRAMS

if TYPE_CHECKING:
    from pathlib import Path

_MODULES = {
    "vllm": "PoolingParams, SamplingParams",
    "vllm.config": "VllmConfig",
    "vllm.engine": "",
    "vllm.engine.arg_utils": "EngineArgs",
    "vllm.entrypoints": "",
    "vllm.entrypoints.cli": "",
    "vllm.entrypoints.cli.serve": "make_arg_parser",
    "vllm.usage": "",
    "vllm.usage.usage_lib": "UsageContext",
    "vllm.utils": "",
    "vllm.utils.argparse_utils": "FlexibleArgumentParser",
    "vllm.utils.network_utils": "get_open_port",
    "vllm.v1": "",
    "vllm.v1.core": "",
    "vllm.v1.core.kv_cache_utils": "_check_enough_kv_cache_memory, get_kv_cache_capacity",
    "vllm.v1.engine": "",
    "vllm.v1.engine.llm_engine": "LLMEngine",
    "vllm.v1.worker": "",
    "vllm.v1.worker.gpu_worker": "Worker",
    "vllm.v1.worker.utils": "request_memory",
}
"""The names that each module of the package imports from `small_engine`."""


def install_small_engine(folder: Path) -> Path:
    """Writes the package. Returns the folder for PYTHONPATH."""
    place = folder / "packages"
    for name, names in _MODULES.items():
        is_package = any(other.startswith(f"{name}.") for other in _MODULES)
        path = place.joinpath(*name.split("."))
        path = path / "__init__.py" if is_package else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = f"from small_engine import {names}\n" if names else ""
        path.write_text(text + ('__version__ = "1.0"\n' if name == "vllm" else ""))
    program = (PROGRAMS / "small_engine.py").read_text()
    (place / "small_engine.py").write_text(program)
    return place
