"""Virtual environments of the peers, so that the project does not depend on them.

Each is created on first use below `.bench/` and reused, with `uv` if it is installed, otherwise with pip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".bench"


def python(name: str) -> Path:
    """The interpreter of the environment `name`, which may not exist yet."""
    return HOME / name / "bin" / "python"


def ensure(name: str, requirements: Sequence[str], *, part: str = "all") -> Path:
    """Install requirements into the environment `name`, and return its interpreter. Raises RuntimeError with the end of
    the installer's output if that fails. Each `part` is installed separately, so that one failure spares the others."""
    wanted, stamp = "\n".join(requirements) + "\n", HOME / name / f"installed-{part}.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python(name)
    uv = shutil.which("uv")
    if not python(name).exists():
        create = [uv, "venv", "--quiet", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
        run([*create, str(HOME / name)])
    pip = [uv, "pip", "install", "--python", str(python(name))] if uv else [str(python(name)), "-m", "pip", "install"]
    run([*pip, "--quiet", *requirements])
    stamp.write_text(wanted)
    return python(name)


def run(command: Sequence[str], cwd: Path | None = None) -> None:
    """Run an installer. Raises RuntimeError with the end of its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip()[-400:])
