"""Virtual environments of the benchmark, apart from ours: what we compare with is never a dependency of the project.

Each is made on first use below `.bench/` and reused. `uv` is taken where it is present, else pip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".bench"


def python(name: str) -> Path:
    """The interpreter of the environment `name`, whether or not it is there yet."""
    return HOME / name / "bin" / "python"


def ensure(name: str, requirements: list[str]) -> Path:
    """Make the environment `name` if its requirements changed; raises RuntimeError with the installer's last words."""
    wanted, stamp = "\n".join(requirements) + "\n", HOME / name / "requirements.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python(name)
    if not python(name).exists():
        create = (
            ["uv", "venv", "--quiet", "--python", sys.executable]
            if shutil.which("uv")
            else [sys.executable, "-m", "venv"]
        )
        _run([*create, str(HOME / name)])
    install(name, requirements)
    stamp.write_text(wanted)
    return python(name)


def install(name: str, requirements: list[str]) -> None:
    """Install into an environment that exists."""
    if shutil.which("uv"):
        _run(["uv", "pip", "install", "--quiet", "--python", str(python(name)), *requirements])
    else:
        _run([str(python(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip()[-600:])
