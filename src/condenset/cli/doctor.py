"""The command `condenset doctor`. It must work in a broken installation."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from condenset import __version__
from condenset.cli.console import print_json, print_line, print_table
from condenset.cli.options import AsJson, DataDir
from condenset.io.bytesize import format_bytes
from condenset.io.files import physical_memory
from condenset.io.user_directories import data_directory

OK, OPTIONAL, MISSING = "ok", "optional", "missing"
UNKNOWN_MEMORY = 1 << 60  # from here on, the system has not reported its size
PROBE_SECONDS = 120  # importing torch can take long the first time
PROBE = """
import json, torch
cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
names = [f"{torch.cuda.get_device_name(i)}, {torch.cuda.mem_get_info(i)[1] >> 30} GiB" for i in cuda]
names += ["mps"] * torch.backends.mps.is_available()
print(json.dumps({"version": torch.__version__, "devices": names, "threads": torch.get_num_threads()}))
"""
# By extra of the package: the module that it installs, and what for.
EXTRAS = {
    "ray": ("ray", "several GPUs and machines"),
    "tensorboard": ("tensorboard", "curves"),
    "hf": ("datasets", "Hugging Face datasets"),
}
COMPILER_COMMANDS = {"linux": "sudo apt-get install gcc", "darwin": "xcode-select --install"}
GPU_COMMAND = "see pytorch.org/get-started for a CUDA build of torch"


def doctor_command(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check the installation: versions, devices, optional parts, data directory and disk.

    The exit code is 1 if a required part is missing. The last column has the command that installs it.
    """
    if sys.stderr.isatty():
        print_line("Checking …", stderr=True)
    checks = run_checks(data_dir)
    if as_json:
        print_json([dataclasses.asdict(check) for check in checks])
    else:
        print_table(("item", "state", "value", "remedy"), [dataclasses.astuple(check) for check in checks])
    if any(check.state == MISSING for check in checks):
        raise typer.Exit(1)


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        item: What was checked.
        state: "ok", "optional" (not installed, but not required) or "missing" (required, or broken).
        value: The version, the path or the reason.
        remedy: The command that installs or mends it.
    """

    item: str
    state: str
    value: str
    remedy: str = ""


def run_checks(data_dir: Path | None = None) -> list[Check]:
    """Run all checks. A check that fails in an unexpected way is reported, and does not stop the others."""
    steps: dict[str, Callable[[], list[Check]]] = {
        "python": lambda: [Check("python", OK, f"{platform.python_version()} in {sys.prefix}")],
        "condenset": _check_packages,
        "torch": _check_torch,
        "compiler": _check_compiler,
        "extras": _check_extras,
        "data directory": lambda: [_check_data_directory(data_dir)],
        "free disk": lambda: [Check("free disk", OK, f"{_free_space(Path.cwd())} in the working directory")],
        "machine": lambda: [Check("machine", OK, f"{_num_cores()} CPU cores, {_describe_memory()}")],
    }
    checks = []
    for item, step in steps.items():
        try:
            checks += step()
        except Exception as error:  # a broken installation can fail in any way
            checks.append(Check(item, MISSING, f"{type(error).__name__}: {error}"))
    return checks


def _check_packages() -> list[Check]:
    """Check the version of condenset, and that the packages are installed that it requires."""
    checks, outdated = [Check("condenset", OK, __version__)], []
    with contextlib.suppress(metadata.PackageNotFoundError):  # run from a directory of sources
        for requirement in metadata.requires("condenset") or ():
            match = re.match(r"([\w.-]+)(?:\[[^]]*\])?(?:>=([\d.]+))?", requirement)
            if match and "extra ==" not in requirement and not _is_installed(match[1], match[2]):
                outdated.append(requirement.partition(";")[0].strip())
    quoted = " ".join(f"'{name}'" for name in outdated)
    packages = ", ".join(outdated) or "all required ones are installed"
    return [
        *checks,
        Check("packages", MISSING if outdated else OK, packages, f"pip install {quoted}" if outdated else ""),
    ]


def _is_installed(name: str, minimum: str | None) -> bool:
    version = _find_version(name)
    return version is not None and _as_numbers(version) >= _as_numbers(minimum or "0")


def _find_version(name: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _as_numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def _check_torch() -> list[Check]:
    """Import torch in another process, which may crash or hang, and check the devices that it finds."""
    if _find_version("torch") is None:
        return [Check("torch", MISSING, "not installed", "pip install torch")]
    try:
        result = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, errors="replace", timeout=PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return [Check("torch", MISSING, f"importing it took over {PROBE_SECONDS} s", _reinstall("torch"))]
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or [f"importing it ended with {result.returncode}"])[-1]
        return [Check("torch", MISSING, reason, _reinstall("torch"))]
    probe: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return [Check("torch", OK, probe["version"]), _check_device(probe)]


def _check_device(probe: dict[str, Any]) -> Check:
    if probe["devices"]:
        return Check("device", OK, "; ".join(probe["devices"]))
    cpu = f"CPU, {probe['threads']} thread{'s' if probe['threads'] > 1 else ''}"
    if shutil.which("nvidia-smi"):
        return Check("device", OPTIONAL, f"{cpu}: torch does not see the GPU", GPU_COMMAND)
    return Check("device", OK, cpu)


def _check_compiler() -> list[Check]:
    """Check what builds kernels on a GPU: a C compiler and Triton."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    command = COMPILER_COMMANDS.get(sys.platform, "install gcc or clang")
    checks = [Check("compiler", OK, compiler) if compiler else Check("compiler", OPTIONAL, "none: slower", command)]
    if sys.platform == "linux":
        version = _find_version("triton")
        missing = Check("triton", OPTIONAL, "not installed: slower on GPUs", "pip install triton")
        checks.append(Check("triton", OK, version) if version else missing)
    return checks


def _check_extras() -> list[Check]:
    checks = []
    for extra, (name, purpose) in EXTRAS.items():
        version = _find_version(name)
        missing = Check(name, OPTIONAL, f"not installed: for {purpose}", f"pip install 'condenset[{extra}]'")
        checks.append(Check(name, OK, version) if version else missing)
    return checks


def _check_data_directory(data_dir: Path | None) -> Check:
    """Check that datasets can be stored, without creating the directory."""
    directory = data_directory(data_dir)
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        remedy = "export CONDENSET_DATA=DIRECTORY"
        return Check("data directory", MISSING, f"{directory} cannot be written: {error.strerror}", remedy)
    note = "" if existing == directory.absolute() else ", created when needed"
    return Check("data directory", OK, f"{directory}, {_free_space(existing)} free{note}")


def _free_space(directory: Path) -> str:
    return format_bytes(shutil.disk_usage(directory).free)


def _describe_memory() -> str:
    size = physical_memory()
    return f"{format_bytes(size)} memory" if size < UNKNOWN_MEMORY else "unknown memory"


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _reinstall(name: str) -> str:
    return f"pip install --force-reinstall {name}"
