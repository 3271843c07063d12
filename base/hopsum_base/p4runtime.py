# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's bindings, on whatever protobuf is installed.

The stubs in the package `p4runtime` (1.4.1, 1.5.0 and 1.6.0) come from an old generator. protobuf refuses such stubs
from version 4 on: "Descriptors cannot be created directly". The messages that the stubs describe are current. Where
protobuf refuses the stubs, `load` takes the file descriptors out of the stubs' sources and makes the modules as a
current generator does. protobuf 3.20, which p4runtime-shell pins, loads the stubs as they are.
Once this module is imported, `from p4.v1 import p4runtime_pb2` works everywhere in the process.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

# The stubs import gRPC themselves.
import hopsum_base.quiet_grpc  # noqa: F401

_STUBS = ("p4.config.v1.p4types_pb2", "p4.config.v1.p4info_pb2", "p4.v1.p4data_pb2", "p4.v1.p4runtime_pb2")
"""The modules of P4Runtime, in the order of their imports."""


def load() -> None:
    """Make the modules of P4Runtime's messages importable. Importing this module calls it; further calls do nothing.

    Raises ModuleNotFoundError where the package `p4runtime` is missing.
    """
    try:
        importlib.import_module(_STUBS[-1])
    # protobuf 4 and later raise TypeError for stubs of an old generator.
    except TypeError:  # protobuf's refusal
        for name in _STUBS:
            _register(name)


def _register(name: str) -> None:
    """Put the module `name` where imports find it, made of the descriptor in the source of that name."""
    from google.protobuf import descriptor_pool
    from google.protobuf.internal import builder

    for needed in ("google.protobuf.any_pb2", "google.rpc.status_pb2"):
        # The descriptors name these files.
        importlib.import_module(needed)
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = ModuleType(name)
    module.__spec__, module.__file__ = spec, spec.origin
    descriptor = descriptor_pool.Default().AddSerializedFile(serialized_file(Path(spec.origin).read_text()))
    module.__dict__["DESCRIPTOR"] = descriptor
    builder.BuildMessageAndEnumDescriptors(descriptor, module.__dict__)
    builder.BuildTopDescriptorsAndMessages(descriptor, name, module.__dict__)
    # The stubs of gRPC, and the next module of the list, import it by this name.
    sys.modules[name] = module
    package, _, last = name.rpartition(".")
    # `from p4.v1 import p4runtime_pb2` looks at the package's attributes first.
    setattr(importlib.import_module(package), last, module)


def serialized_file(source: str) -> bytes:
    """Return the serialized FileDescriptorProto in the source of a stub. Raises ValueError where there is none."""
    # A stub has the descriptor on one line, as a literal. Parsing all of P4Runtime's stub takes 30 times as long.
    found = re.search(r"\bserialized_pb=(b'.*')$", source, re.MULTILINE)
    if found is None:
        raise ValueError("no serialized_pb: not the source of a stub that an old protoc made")
    return bytes(ast.literal_eval(found[1]))


load()

from p4.config.v1 import p4info_pb2  # noqa: E402
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc  # noqa: E402

__all__ = ["p4info_pb2", "p4runtime_pb2", "p4runtime_pb2_grpc"]
