"""`python -m tests.as_user PYTEST-ARGUMENTS…`: run tests as an ordinary user, from a machine where one is root.

Makes a user with a home folder, copies this working tree and its virtual environment there, runs pytest as that user,
and removes both again. Without `useradd`, the user is `nobody` with a folder of its own. Whatever keeps it from running
the tests is an error: the tests of ordinary users are never left out in silence.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
USERS = "windlass-test-"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
HANDED_ON = ("LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
             "https_proxy", "no_proxy", "CI")  # fmt: skip
HANDED_ON_STARTS = ("PIP_", "UV_", "WINDLASS_TEST_")


class Unable(Exception):
    """The tests cannot be run as an ordinary user here; the text says why."""


def main(arguments: list[str]) -> int:
    if os.geteuid() != 0:
        sys.stderr.write("tests.as_user: only root can be another user; `make test` already runs as an ordinary one\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the user is removed
    try:
        with ordinary_user() as user:
            clone = copy_tree(Path(user.pw_dir) / "windlass")
            python = make_venv(clone, user)
            give_to(user, clone)
            print(f"As {user.pw_name} (user {user.pw_uid}), in {clone}, with Python of {interpreter_of(python)}:")
            return run_as(user, [str(python), "-m", "pytest", *arguments], clone)
    except (Unable, OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"tests.as_user: the tests cannot run as an ordinary user here: {error}\n")
        return 1


# ------------------------------------------------------------------------------------------------- the user


@contextlib.contextmanager
def ordinary_user() -> Iterator[pwd.struct_passwd]:
    """A new one, which is removed again with its home folder."""
    name = f"{USERS}{os.getpid()}"
    useradd, userdel = (shutil.which(program, path=PATH) for program in ("useradd", "userdel"))
    if useradd is None or userdel is None:
        with tempfile.TemporaryDirectory(prefix="windlass-home-", ignore_cleanup_errors=True) as home:
            user = pwd.struct_passwd([*_nobody()[:5], home, "/bin/sh"])
            os.chown(home, user.pw_uid, user.pw_gid)
            yield user
        return
    for left in pwd.getpwall():
        if re.fullmatch(rf"{USERS}\d+", left.pw_name) and not Path(f"/proc/{left.pw_name[len(USERS) :]}").exists():
            remove(left, userdel)
    subprocess.run([useradd, "--create-home", "--user-group", "--shell", "/bin/sh", name], check=True)
    user = pwd.getpwnam(name)
    try:
        yield user
    finally:
        remove(user, userdel)


def remove(user: pwd.struct_passwd, userdel: str) -> None:
    end_all_of(user.pw_uid)
    subprocess.run([userdel, "--remove", user.pw_name], check=False, capture_output=True)


def _nobody() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        raise Unable("there is neither useradd nor a user nobody") from None


def end_all_of(uid: int) -> None:
    """Embedded PostgreSQLs, for example, that a test left behind. The user was made for these tests."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if process.stat().st_uid == uid:
                    os.kill(int(process.name), signal.SIGKILL)


def run_as(user: pwd.struct_passwd, command: list[str], folder: Path) -> int:
    kept = {name: value for name, value in os.environ.items()
            if name in HANDED_ON or name.startswith(HANDED_ON_STARTS)}  # fmt: skip
    environment = {**kept, "PATH": PATH, "HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    return subprocess.run(
        command, cwd=folder, env=environment, user=user.pw_uid, group=user.pw_gid, extra_groups=[], check=False,
        umask=0o022,
    ).returncode  # fmt: skip


# ------------------------------------------------------------------------------------------------- its clone


def copy_tree(clone: Path) -> Path:
    """What git knows of this working tree, as it is now; without git, all but what is made."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        left_out = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, clone, symlinks=True, ignore=left_out)
        return clone
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name, follow_symlinks=False)
    return clone


def give_to(user: pwd.struct_passwd, clone: Path) -> None:
    """All but the packages, which are shared with us and only read."""
    for folder, names, files in os.walk(clone):
        if Path(folder).name == "site-packages":
            names.clear()
            files = []
        for name in (".", *files):
            os.chown(Path(folder, name), user.pw_uid, user.pw_gid, follow_symlinks=False)


def make_venv(clone: Path, user: pwd.struct_passwd) -> Path:
    """One like ours, of an interpreter that everybody can run, with our packages. Its Python."""
    venv, ours = clone / ".venv", Path(sys.prefix)
    interpreter = reachable_interpreter(user) or copy_interpreter(user)
    subprocess.run([interpreter, "-m", "venv", "--without-pip", venv], check=True)
    packages, copies = (Path(sysconfig.get_path("purelib", vars={"base": str(one)})) for one in (ours, venv))
    shutil.copytree(packages, copies, symlinks=True, copy_function=_link, dirs_exist_ok=True)
    for path in [*copies.glob("*.pth"), *copies.glob("*.dist-info/direct_url.json")]:
        _rewrite(path, str(ROOT), str(clone))
    for script in (ours / "bin").iterdir():
        if not (venv / "bin" / script.name).exists() and script.is_file() and not script.is_symlink():
            shutil.copy2(script, venv / "bin")
            _rewrite(venv / "bin" / script.name, str(ours), str(venv))
    (venv / ".ready").touch()
    return venv / "bin" / "python"


def _link(source: str, target: str) -> str:
    """The same file under another name, where both are of one file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _rewrite(path: Path, old: str, new: str) -> None:
    """In a file of its own: it may be a link to ours."""
    data = path.read_bytes()
    if old.encode() in data and b"\0" not in data:
        mode = path.stat().st_mode
        path.unlink()
        path.write_bytes(data.replace(old.encode(), new.encode()))
        path.chmod(mode)


# ------------------------------------------------------------------------------------------------- its interpreter


def interpreter_of(python: Path) -> Path:
    return python.resolve()


def reachable_interpreter(user: pwd.struct_passwd) -> str | None:
    """Of the same version as ours, so that our packages work with it, and open to everybody."""
    ours = Path(sys.base_prefix) / "bin" / f"python{VERSION}"
    found = shutil.which(f"python{VERSION}", path=PATH)
    return next((python for python in filter(None, (str(ours), found)) if works_for(user, python)), None)


def works_for(user: pwd.struct_passwd, python: str) -> bool:
    """With what our tests need of it; a shared library may lie where this user does not come."""
    command = [python, "-I", "-c", "import venv, ensurepip, ctypes, ssl, sqlite3"]
    with contextlib.suppress(PermissionError, FileNotFoundError):
        done = subprocess.run(
            command, user=user.pw_uid, group=user.pw_gid, extra_groups=[], env={}, cwd="/", capture_output=True,
            check=False,
        )  # fmt: skip
        return done.returncode == 0
    return False


def copy_interpreter(user: pwd.struct_passwd) -> str:
    """Ours lies where nobody else comes, such as /root."""
    target = Path(user.pw_dir) / "python"
    if sys.base_prefix in ("/usr", "/usr/local"):
        raise Unable(f"the Python of {sys.base_prefix} cannot make virtual environments: install python3-venv")
    left_out = shutil.ignore_patterns("site-packages", "test", "__pycache__", "share")
    shutil.copytree(sys.base_prefix, target, symlinks=True, ignore=left_out)
    python = str(target / "bin" / f"python{VERSION}")
    if not works_for(user, python):
        raise Unable(
            f"the Python of {sys.base_prefix} is for root alone, and a copy of it does not run: install Python "
            f"{VERSION} with venv for all users, such as python{VERSION}-venv of the distribution"
        )
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
