"""What reflection tells of the services of a server: their files, and those of reflection v1.

The library serves `grpc.reflection.v1alpha` only. Version 1 has the same messages under another package, so that its
descriptors are made from those of v1alpha. They are kept in a pool of their own: other code of this process may bring
the file of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool

ALPHA, V1 = "grpc.reflection.v1alpha", "grpc.reflection.v1"
ALPHA_SERVICE, V1_SERVICE = f"{ALPHA}.ServerReflection", f"{V1}.ServerReflection"


def pool_of(services: Iterable[str]) -> Any:
    """A pool with the files of these services, of what they import, and of both versions of reflection."""
    known = descriptor_pool.Default()
    pool = descriptor_pool.DescriptorPool()
    seen: set[str] = set()
    for name in (*services, ALPHA_SERVICE):
        _add(pool, known.FindFileContainingSymbol(name), seen)
    pool.Add(_version_1(known.FindFileContainingSymbol(ALPHA_SERVICE)))
    return pool


def _add(pool: Any, file: Any, seen: set[str]) -> None:
    """A file comes after those that it imports."""
    if file.name in seen:
        return
    seen.add(file.name)
    for needed in file.dependencies:
        _add(pool, needed, seen)
    pool.AddSerializedFile(file.serialized_pb)


def _version_1(alpha: Any) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto.FromString(alpha.serialized_pb)
    file.name, file.package = "grpc/reflection/v1/reflection.proto", V1
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(f".{ALPHA}.", f".{V1}.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{ALPHA}.", f".{V1}.")
            method.output_type = method.output_type.replace(f".{ALPHA}.", f".{V1}.")
    return file
