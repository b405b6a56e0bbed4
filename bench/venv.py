"""Virtual environments of the benchmark, apart from ours: what we compare with is never a dependency of the project.

Each is made on first use below `.bench/` and reused. `uv` is taken where it is present, else pip.
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
    """The interpreter of the environment `name`, whether or not it is there yet."""
    return HOME / name / "bin" / "python"


def ensure(name: str, requirements: Sequence[str], *, part: str = "all") -> Path:
    """The environment `name` with these requirements; RuntimeError with the installer's last words where that fails.

    A `part` is installed on its own, so that one that cannot be had does not cost the others.
    """
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
    """Run an installer in silence, unless it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip()[-400:])
