# SPDX-License-Identifier: Apache-2.0
"""The way of every call to its answer, and the calls that may be in progress.

The token comes first: a call without one that may pass is refused before its message is read. Calls with tokens that
nobody has are few at a time, in all and from each address, so that a worker whose job is gone still hears why. Each
token has a bound of its own: its holder cannot use up the calls of others. The message has to come within MESSAGE_S,
the answer within ANSWER_S, and each reply has to be taken within SEND_S. An error of the control plane becomes a
status with its message. Any other error becomes INTERNAL, and its reason is in the log, not in the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from hopsum_base.quiet_grpc import grpc
from hopsum_controlplane.cluster.requests import printable
from hopsum_controlplane.errors import (
    ControlPlaneError,
    InvalidRequestError,
    JobExistsError,
    ResourceExhaustedError,
    StoreError,
    UnauthenticatedError,
    UndecidedError,
    UnknownJobError,
)
from hopsum_controlplane.service.access import Access, bearer_token
from hopsum_wire.control.services import Method, full_name, methods

STRANGERS_MAX: Final = 32
"""The most calls in progress with tokens that no job and no member has."""
STRANGERS_OF_ADDRESS_MAX: Final = 8
_PORTLESS: Final = ("unix", "vsock")


class CallRefusedError(Exception):
    """The service itself refuses a call (too many, malformed, late, closing). The client gets `code` and `told`."""

    def __init__(self, code: grpc.StatusCode, told: str) -> None:
        super().__init__(told)
        self.code, self.told = code, told


class CallLimiter:
    """Bounds the calls in progress, by token and by address. For the event loop's thread only."""

    def __init__(self) -> None:
        self._of_token: Counter[str] = Counter()
        self._strangers: Counter[str] = Counter()

    @contextmanager
    def known_call(self, token: str, most: int) -> Iterator[None]:
        """Count a call with a known token while the block runs. Raises CallRefusedError if `most` calls with it run."""
        # A bound for each token: the holder of one cannot use up the calls of another.
        if self._of_token[token] >= most:
            raise _busy(f"{most} calls with this token are in progress")
        with _counted(self._of_token, token):
            yield

    @contextmanager
    def unknown_call(self, peer: str) -> Iterator[None]:
        """Count a call with an unknown token while the block runs. `peer` is gRPC's name of its client.

        Raises CallRefusedError if STRANGERS_MAX such calls run, or STRANGERS_OF_ADDRESS_MAX from its address.
        """
        address = address_of(peer)
        # Unknown tokens are let in, a few at a time, so that a worker of a deleted job hears why.
        if self._strangers[address] >= STRANGERS_OF_ADDRESS_MAX or self._strangers.total() >= STRANGERS_MAX:
            raise _busy("too many calls with tokens that no job and no worker has are in progress")
        with _counted(self._strangers, address):
            yield


def address_of(peer: str) -> str:
    """Return gRPC's name of a peer, "ipv4:10.0.0.1:4321", without its port: "ipv4:10.0.0.1"."""
    return peer if peer.startswith(_PORTLESS) else peer.rpartition(":")[0]


@contextmanager
def _counted(counter: Counter[str], key: str) -> Iterator[None]:
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


def _busy(why: str) -> CallRefusedError:
    return CallRefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{why}: ask again later")


MESSAGE_S: Final = 5.0
ANSWER_S: Final = 60.0
"""The time for the one reply of a call, or each next one of a stream that is not waiting for news."""
SEND_S: Final = 5.0
_SHORT_BYTES: Final = 4 << 10
"""The bytes that are parsed in a millisecond or so."""
Result = TypeVar("Result")
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """A call: its token, its peer as gRPC writes addresses, and the seconds until its client gives it up.

    `certificate` is the common name of its client's certificate, empty without one.
    """

    token: str
    peer: str
    left_s: float | None
    certificate: str = ""


Answer = Callable[[Any, Call], AsyncGenerator[bytes, None]]
"""Yields one reply, or those of a stream, serialized, given a message."""
Admit = Callable[[str, Call], AbstractContextManager[None]]
"""Lets a call of a method pass for a block, or raises. It sees the token, and no message."""


class BlockingPool:
    """A pool of threads for functions that may block: the event loop itself never blocks."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function in one of the threads, and return its result or raise its error. For the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def submit(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in one of the threads, later. Its error is logged. For any thread.

        After the end of the threads nothing is called.
        """

        def logged() -> None:
            try:
                function(*arguments)
            except Exception:
                _log.exception("%s failed", function.__name__)

        # The service is closing, and its threads have ended.
        with suppress(RuntimeError):
            self._executor.submit(logged)

    def answer(self, function: Callable[[Any, Call], Any]) -> Answer:
        """Return an Answer that calls `function` in one of the threads and yields its message, serialized.

        The Answer raises TimeoutError after ANSWER_S, and the error of `function`.
        """

        def serialized(message: Any, call: Call) -> bytes:
            return bytes(function(message, call).SerializeToString())

        async def reply(message: Any, call: Call) -> AsyncGenerator[bytes, None]:
            async with asyncio.timeout(ANSWER_S):
                found = await self.run(serialized, message, call)
            yield found

        return reply


def handler_of(
    service: str, answers: Mapping[str, Answer], admit: Admit, pool: BlockingPool, access: Access
) -> grpc.GenericRpcHandler:
    """Return the handler, for grpc.aio, of a service of control.proto, given an answer for each of its methods.

    Long messages are parsed in `pool`. `access` decides which clients may call at all, and `admit` which tokens. Raises
    ValueError when a method has no answer, or an answer no method.
    """
    found = methods(service)
    if set(found) != set(answers):
        raise ValueError(f"service {service} has methods {sorted(found)}, answers are {sorted(answers)}")
    # Taken as a stream, a call reaches its handler before its message is here.
    made = {
        # grpc.aio reads and parses a unary request before its handler runs. As a stream the handler sees the token
        # first.
        name: grpc.stream_stream_rpc_method_handler(_guarded(name, found[name], answer, admit, pool, access))
        for name, answer in answers.items()
    }
    return grpc.method_handlers_generic_handler(full_name(service), made)


def _guarded(
    name: str, method: Method, answer: Answer, admit: Admit, pool: BlockingPool, access: Access
) -> Callable[[Any, Any], Awaitable[None]]:
    async def serve(_: object, context: Any) -> None:
        peer, certificate = unquote(context.peer()), _common_name(context.auth_context())
        call = Call(bearer_token(context.invocation_metadata()), peer, context.time_remaining(), certificate)
        try:
            # Certificate, then token, then message: nothing of a stranger's message is parsed.
            access.require_certificate(certificate)
            with admit(name, call):
                data = await _message(context)
                # A long message would hold up the loop, and so every heartbeat.
                short = len(data) <= _SHORT_BYTES
                message = _parsed(method, data) if short else await pool.run(_parsed, method, data)
                async with aclosing(answer(message, call)) as replies:
                    async for reply in replies:
                        # A client that reads nothing holds a place no longer.
                        async with asyncio.timeout(SEND_S):
                            await context.write(reply)
            return
        except Exception as error:
            # `abort` raises to end the call. Inside the try block its error would be caught again.
            code, told = _status(name, error)
        await context.abort(code, told)

    return serve


def _common_name(proved: Mapping[str, Iterable[bytes]]) -> str:
    """Return the common name of a client's certificate, printable, empty without one."""
    names = [name.decode(errors="replace") for name in proved.get("x509_common_name", ())]
    return printable(names[0]) if names else ""


async def _message(context: Any) -> bytes:
    """Return the message of a call. Raises CallRefusedError when none comes, or not in time."""
    try:
        async with asyncio.timeout(MESSAGE_S):
            message = await context.read()
    except TimeoutError:
        raise CallRefusedError(grpc.StatusCode.DEADLINE_EXCEEDED, f"no message came within {MESSAGE_S:g} s") from None
    if message is grpc.aio.EOF:
        raise CallRefusedError(grpc.StatusCode.INVALID_ARGUMENT, "a call without a message")
    return bytes(message)


def _parsed(method: Method, data: bytes) -> Any:
    message = method.request()
    try:
        message.ParseFromString(data)
    except Exception:  # whatever this protobuf raises for what is no message
        told = f"{len(data)} bytes that are no {method.request.DESCRIPTOR.name}"
        raise CallRefusedError(grpc.StatusCode.INVALID_ARGUMENT, told) from None
    return message


def _status(name: str, error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return the status and the message that a client gets for an error."""
    if isinstance(error, CallRefusedError):
        return error.code, error.told
    if isinstance(error, TimeoutError):
        return grpc.StatusCode.DEADLINE_EXCEEDED, f"{name} took too long"
    if isinstance(error, ControlPlaneError):
        return status_of(error), str(error)
    _log.error("%s failed", name, exc_info=error)
    return grpc.StatusCode.INTERNAL, "an error of the controller's own, see its log"


_STATUS: Final[dict[type[ControlPlaneError], grpc.StatusCode]] = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownJobError: grpc.StatusCode.NOT_FOUND,
    JobExistsError: grpc.StatusCode.ALREADY_EXISTS,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    ResourceExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    # Workers continue to sum, as while no controller answers.
    UndecidedError: grpc.StatusCode.UNAVAILABLE,
    # A full disk passes: workers wait for it as for a controller that is busy.
    StoreError: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def status_of(error: ControlPlaneError) -> grpc.StatusCode:
    """Return the gRPC status code of an error. A class without a code of its own has FAILED_PRECONDITION."""
    # Subclasses have the code of their base.
    for kind, code in _STATUS.items():
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.FAILED_PRECONDITION


def optional_field(message: Any, name: str) -> Any:
    """Return the value of an optional field of a message, None where it was not sent."""
    return getattr(message, name) if message.HasField(name) else None
