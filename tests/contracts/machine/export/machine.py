"""A machine for one task: its environment, an empty folder for temporary files, and a server that takes its objects."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from lxml import etree
from tests.contracts.machine.export.archive import Archive
from tests.contracts.machine.export.mods_rules import breaches

from windlass.contracts.machine.worker.run import run

TASK = "export_mods_1704857234567_a3f8c2d1"
ROOT_PI = "01KAAAAAAAAAAAAAAAAAAAAAAA"
SECRET = "very/secret+key"
SIGNATURE = "5ignature0f7his7ask"


class Machine:
    def __init__(self, archive: Archive, folder: Path) -> None:
        self.archive, self.tmp = archive, folder / "tmp"
        self.tmp.mkdir()
        self.env = {
            "TASK_ID": TASK,
            "PI": ROOT_PI,
            "EXPORT_FORMAT": "mods",
            "EXPORT_OPTIONS": "{}",
            "BATCH_ID": "single",
            "CALLBACK_URL": f"{archive.url}/callback/{TASK}?sig={SIGNATURE}",
            "UPLOAD_URL": f"{archive.url}/upload/{TASK}/?sig={SIGNATURE}",
            "WINDLASS_MODS_API_URL": archive.url,
            "WINDLASS_MODS_GATEWAY_URL": archive.url,
            "CALLBACK_PATIENCE_MS": "5000",
        }

    def ask(self, **options: Any) -> None:
        self.env["EXPORT_OPTIONS"] = msgspec.json.encode(options).decode()

    def run(self, export: Callable[..., Any], **options: Any) -> int:
        """In this process, whose temporary files are the machine's."""
        if options:
            self.ask(**options)
        with patch.object(tempfile, "tempdir", str(self.tmp)):
            return run(export, self.env)

    def start(self, *command: str) -> subprocess.Popen[str]:
        """As a process of its own; by default the exporter."""
        known = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
        return subprocess.Popen(
            [sys.executable, *(command or ("-m", "windlass.contracts.machine.export.mods"))],
            env={**known, "TMPDIR": str(self.tmp), **self.env},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def finish(self, *command: str) -> tuple[int, str]:
        """The exit code, and all that was written."""
        process = self.start(*command)
        out, err = process.communicate(timeout=120)
        return process.returncode, out + err

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.tmp.rglob("*"))

    @property
    def stored(self) -> dict[str, bytes]:
        prefix, suffix = f"/upload/{TASK}/", f"?sig={SIGNATURE}"
        uploads = self.archive.uploads
        assert all(path.startswith(prefix) and path.endswith(suffix) for path in uploads)
        return {f"exports/{TASK}/{path[len(prefix) : -len(suffix)]}": body for path, body in uploads.items()}

    @property
    def callback(self) -> dict[str, Any]:
        (callback,) = self.archive.callbacks
        assert isinstance(callback, dict)
        return callback

    def document(self) -> etree._Element:
        """What was stored, as XML that keeps the rules of MODS."""
        (content,) = self.stored.values()
        root = etree.fromstring(content, etree.XMLParser(huge_tree=True))
        assert breaches(root) == []
        return root
