"""The Python code of our protos: `make protos` writes it, and a test sees that it is fresh.

What the compiler adds to refuse an older protobuf than its own is left out: the code itself needs nothing of it, and a
worker is installed beside other people's pins.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.shape.source import SRC

PROTOS = SRC / "windlass/contracts"
VERSION_CHECK = re.compile(
    r"^# Protobuf Python Version.*\n|^from google\.protobuf import runtime_version.*\n"
    r"|^_runtime_version\.ValidateProtobufRuntimeVersion\((?s:.*?)^\)\n",
    re.MULTILINE,
)


def generated() -> dict[Path, str]:
    """Each file that the protos give, with its text."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(proto.relative_to(SRC)) for proto in sorted(PROTOS.glob("*/wire/*.proto"))]
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={folder}", f"--pyi_out={folder}"]
        subprocess.run([*command, *files], cwd=SRC, check=True)
        made = sorted(path for path in Path(folder).rglob("*_pb2.py*"))
        return {SRC / path.relative_to(folder): VERSION_CHECK.sub("", path.read_text()) for path in made}


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
