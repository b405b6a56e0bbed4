"""The descriptors that gRPC reflection serves: those of the services, and of reflection v1.

The library serves `grpc.reflection.v1alpha` only. Version 1 has the same messages in another package, so its
descriptors are made from those of v1alpha. They have a pool of their own, since other code in this process may load a
file with the same name.
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
    """Add a file after the files that it imports."""
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
