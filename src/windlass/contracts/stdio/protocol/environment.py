"""Where a worker runs: this interpreter, another one, one made for a list of requirements, or any command.

Windlass need not be installed in an environment: its worker is started by the path of its file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .service import Service

START = Path(__file__).with_name("start.py")
# These make a Python of another environment use the wrong packages.
UNSET = ("PYTHONHOME", "PYTHONEXECUTABLE", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_SHLVL", "VIRTUAL_ENV")


class EnvironmentFailed(RuntimeError):
    """An environment could not be made; the text has the output of the tool."""


@dataclass(frozen=True)
class Environment:
    """A command that starts a worker, and changes to its environment variables (None: unset)."""

    command: tuple[str, ...]
    variables: Mapping[str, str | None] = field(default_factory=dict)
    speaks_python: bool = False

    @classmethod
    def of(cls, *command: str, speaks_python: bool = False) -> Environment:
        """Any program that speaks the protocol. `speaks_python` if its scripts are Python: proxies need that."""
        if not command:
            raise ValueError("a command must have at least one word")
        return cls(tuple(command), speaks_python=speaks_python)

    @classmethod
    def python(cls, executable: str | os.PathLike[str] | None = None) -> Environment:
        """Our worker in this interpreter, or in another one (3.10 or newer)."""
        if executable is None or str(executable) == sys.executable:
            return cls((sys.executable, str(START)), speaks_python=True)
        return cls((str(executable), str(START)), dict.fromkeys(UNSET), speaks_python=True)

    @classmethod
    def uv(
        cls,
        requirements: Sequence[str],
        *,
        python: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        base_env: Mapping[str, str] | None = None,
    ) -> Environment:
        """An environment with these requirements; made once, and kept in `folder` (default: below ~/.cache/windlass).
        Uses uv if it is installed, else venv and pip. `python` is a version such as 3.12, or a path. Builds of packages
        get the variables of `base_env`, by default all of ours."""
        base = Path(folder) if folder is not None else _cache()
        name = hashlib.sha256("\n".join([*sorted(requirements), f"python {python}"]).encode()).hexdigest()[:16]
        target = base / name
        base.mkdir(parents=True, exist_ok=True)
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (target / "ready").exists():
                shutil.rmtree(target, ignore_errors=True)
                _make(target, list(requirements), python, os.environ if base_env is None else base_env)
                (target / "ready").touch()
        return cls.python(target / "bin" / "python")

    def service(self, **options: Any) -> Service:
        """A service with a worker of this environment."""
        from .service import Service

        return Service(self, **options)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windlass" / "environments"


def _make(folder: Path, requirements: list[str], python: str | None, variables: Mapping[str, str]) -> None:
    clean = {name: value for name, value in variables.items() if name not in UNSET}
    uv = _uv()
    target = str(folder / "bin" / "python")
    if uv is not None:
        _run([uv, "venv", "--quiet", "--python", python or sys.executable, str(folder)], clean)
        install = [uv, "pip", "install", "--quiet", "--python", target]
    else:
        _run([shutil.which(f"python{python}") or python or sys.executable, "-m", "venv", str(folder)], clean)
        install = [target, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if requirements:
        _run([*install, *requirements], clean)


def _uv() -> str | None:
    """The path of uv, on PATH or beside this interpreter."""
    return shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))


def _run(command: list[str], variables: Mapping[str, str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, stdin=subprocess.DEVNULL)
    if done.returncode:
        output = (done.stderr or done.stdout).strip()[-2000:]
        raise EnvironmentFailed(f"{' '.join(command[:4])} … ended with {done.returncode}: {output}")
