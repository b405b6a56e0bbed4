"""The generated code of our protos is what the protos give."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from tests.shape.protos import PROTOS, generated
from tests.shape.source import SRC


def test_generated_code_is_fresh() -> None:
    made = generated()
    assert {path.name for path in made} == {path.name for path in PROTOS.glob("*/wire/*_pb2.py*")}
    assert [path.name for path, text in made.items() if path.read_text() != text] == [], "run `make protos`"


def test_generated_code_runs_with_an_older_protobuf() -> None:
    assert [path.name for path in PROTOS.glob("*/wire/*_pb2.py") if "runtime_version" in path.read_text()] == []


def test_every_field_says_what_it_is() -> None:
    """Clients in other languages are written from the protos alone."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "protos.bin"
        files = [str(proto.relative_to(SRC)) for proto in sorted(PROTOS.glob("*/wire/*.proto"))]
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={made}"]
        subprocess.run([*command, "--include_source_info", *files], cwd=SRC, check=True)
        described = FileDescriptorSet.FromString(made.read_bytes())

    silent = [field for file in described.file for field in fields_without_comment(file)]
    assert silent == []


def fields_without_comment(file: FileDescriptorProto) -> list[str]:
    """Names of fields, at any depth, with no comment above or beside them."""
    said = {
        tuple(place.path) for place in file.source_code_info.location
        if (place.leading_comments + place.trailing_comments).strip()
    }  # fmt: skip
    messages = [((4, number), message) for number, message in enumerate(file.message_type)]
    found: list[str] = []
    while messages:
        path, message = messages.pop()
        found += [
            f"{file.package}.{message.name}.{field.name}"
            for number, field in enumerate(message.field)
            if (*path, 2, number) not in said
        ]
        nested = [((*path, 3, number), inner) for number, inner in enumerate(message.nested_type)]
        messages += [one for one in nested if not one[1].options.map_entry]
    return sorted(found)


def test_a_field_without_a_comment_is_found() -> None:
    file = FileDescriptorProto(package="p")
    message = file.message_type.add(name="M")
    message.field.add(name="told")
    message.field.add(name="silent")
    file.source_code_info.location.add(path=[4, 0, 2, 0], trailing_comments=" what it is\n")

    assert fields_without_comment(file) == ["p.M.silent"]
