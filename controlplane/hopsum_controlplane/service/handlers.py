# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a call to the bytes of its answer, whatever the bytes are.

An answer is a function of (message, token, context). What it raises becomes a status with one message; what it should
not raise becomes INTERNAL, whose reason stands in the log and not in the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc

from hopsum.rpc.services import Method, full_name, methods
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.service.access import bearer
from hopsum_controlplane.service.refusals import status_of

Answer = Callable[[Any, str, grpc.ServicerContext], Any]
_log: Final = logging.getLogger(__name__)


def handler_of(service: str, answers: Mapping[str, Answer]) -> grpc.GenericRpcHandler:
    """Return the handler of a service, given an answer for each of its methods."""
    found = methods(service)
    if set(found) != set(answers):
        raise ValueError(f"service {service} has methods {sorted(found)}, answers are {sorted(answers)}")
    made = {
        name: grpc.unary_unary_rpc_method_handler(_guarded(name, found[name], answer))
        for name, answer in answers.items()
    }
    return grpc.method_handlers_generic_handler(full_name(service), made)


def _guarded(name: str, method: Method, answer: Answer) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
        code, told = grpc.StatusCode.INTERNAL, "an error of the controller's own, see its log"
        try:
            message = _parsed(method, request)
        except Exception:  # whatever this protobuf raises for what is no message
            code, told = grpc.StatusCode.INVALID_ARGUMENT, f"{len(request)} bytes that are no {_name(method)}"
        else:
            try:
                reply = answer(message, bearer(context.invocation_metadata()), context)
                return bytes(reply.SerializeToString())
            except ControlPlaneError as error:
                code, told = status_of(error), str(error)
                if code is grpc.StatusCode.INTERNAL:
                    _log.error("%s: %s", name, error)
            except Exception:
                _log.exception("%s failed", name)
        context.abort(code, told)  # raises
        raise AssertionError("not reached")

    return serve


def _parsed(method: Method, request: bytes) -> Any:
    message = method.request()
    message.ParseFromString(request)
    return message


def _name(method: Method) -> str:
    return str(method.request.DESCRIPTOR.name)
