# SPDX-License-Identifier: Apache-2.0
"""The loop of UDP ports for numba: receive, run the engine, send, without the interpreter lock.

`native.loop_code` compiles `serve` and keeps the machine code. No other module imports this one. Memory comes as the
records of `udp_layout`, and as pointers to int64 or uint8 elements. Every number is a signed integer: numba makes a
float of int64 and uint64.

The kernel's calls take a msghdr as Linux has it on 64 bits: recvmsg(2), sendmsg(2), and udp(7) for UDP_GRO and
UDP_SEGMENT.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hopsum_base.kernel_structs import IoVector, SocketAddress
from hopsum_base.record_kernels import Numbers, integers_at, octets_at, record_at, record_in
from hopsum_base.records import offset_of, record_bytes
from hopsum_switch.native.memory_layout import ControlWord
from hopsum_switch.ports.udp_frames import (
    END_UNICAST,
    ETHERNET_BYTES,
    FIRST_UNICAST,
    HEADERS_BYTES,
    IPV4_BYTES,
    MORE_OR_OFFSET,
    PROTO_UDP,
    UDP_BYTES,
)
from hopsum_switch.ports.udp_layout import (
    DESTINATIONS,
    MAX_PAYLOAD_BYTES,
    MAX_SEGMENTS,
    PORTS,
    Egress,
    Group,
    PortsLoopState,
)

# numba and llvmlite come without types, and `import_module` keeps mypy from looking into them.
_numba: Any = import_module("numba")
_ir: Any = import_module("llvmlite.ir")
_types: Any = _numba.types

F = TypeVar("F", bound=Callable[..., Any])


Octets = Numbers[int]
Words = Numbers[int]
if TYPE_CHECKING:
    # For a type checker the numbers of a kernel are Python's.
    _int16 = _int32 = int
else:
    _int16, _int32 = np.int16, np.int32

# Numbers of the Linux ABI, the same on x86-64 and arm64.
_MSG_DONTWAIT, _CLOCK_MONOTONIC = 0x40, 1
_POLLIN = select.POLLIN
_CONTROL_BYTES, _NAME_BYTES, _VECTOR_BYTES = 24, record_bytes(SocketAddress), record_bytes(IoVector)
_EAGAIN, _ENOBUFS, _EMSGSIZE, _EIO, _EINVAL = errno.EAGAIN, errno.ENOBUFS, errno.EMSGSIZE, errno.EIO, errno.EINVAL
_IP, _UDP = ETHERNET_BYTES, ETHERNET_BYTES + IPV4_BYTES
_FRAMES_TO_RUN, _DONE, _STEPS_TAKEN = int(ControlWord.COUNT), int(ControlWord.DONE), int(ControlWord.STEPS_TAKEN)
_OUTPUTS, _OUT_USED, _NOW = int(ControlWord.OUTPUTS), int(ControlWord.OUT_USED), int(ControlWord.NOW)
_FRAMES, _OFFSETS, _LENGTHS = int(ControlWord.FRAMES), int(ControlWord.OFFSETS), int(ControlWord.LENGTHS)
_PORTS, _OUT = int(ControlWord.PORTS), int(ControlWord.OUT)
_OUT_PORTS, _OUT_LENGTHS = int(ControlWord.OUT_PORTS), int(ControlWord.OUT_LENGTHS)

# Symbols of the C library, which LLVM finds in the process. `intp` stands for every pointer and every size.
_recvmsg: Callable[[int, int, int], int] = _types.ExternalFunction(
    "recvmsg", _types.intp(_types.intc, _types.intp, _types.intc)
)
_sendmsg: Callable[[int, int, int], int] = _types.ExternalFunction(
    "sendmsg", _types.intp(_types.intc, _types.intp, _types.intc)
)
_memcpy: Callable[[int, int, int], int] = _types.ExternalFunction(
    "memcpy", _types.intp(_types.intp, _types.intp, _types.intp)
)
_ppoll: Callable[[int, int, int, int], int] = _types.ExternalFunction(
    "ppoll", _types.intc(_types.intp, _types.intp, _types.intp, _types.intp)
)
_clock_gettime: Callable[[int, int], int] = _types.ExternalFunction(
    "clock_gettime", _types.intc(_types.intc, _types.intp)
)
_errno: Callable[[], Words] = _types.ExternalFunction("__errno_location", _types.CPointer(_types.int32)())


_loop_at, _egress_in, _group_in, _part_in = (
    record_at(PortsLoopState),
    record_in(Egress),
    record_in(Group),
    record_in(IoVector),
)
_ADDRESS_AT, _PORT_AT = offset_of(SocketAddress, "address"), offset_of(SocketAddress, "port")
_SENDER_AT = offset_of(PortsLoopState, "sender")


@_numba.extending.intrinsic  # type: ignore[untyped-decorator]
def _call(_: Any, function: Any, state: Any, control: Any) -> Any:
    """Call the function at an address with two addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = _ir.IntType(64)
        kind = _ir.FunctionType(_ir.VoidType(), [word, word]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], kind), arguments[1:])
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.int64, _types.int64), generate


def _part(function: F) -> F:
    compiled: F = _numba.njit(error_model="numpy")(function)
    return compiled


@_part
def _get(data: Octets, place: int) -> int:
    """Return two bytes as a number."""
    return data[place] * 256 + data[place + 1]


@_part
def _put(data: Octets, place: int, value: int) -> None:
    """Write a number as two bytes."""
    data[place] = (value >> 8) & 255
    data[place + 1] = value & 255


@_part
def _sum(data: Octets, first: int) -> int:
    """Return the sum of the ten words of an IPv4 header."""
    total = 0
    for place in range(first, first + IPV4_BYTES, 2):
        total += _get(data, place)
    return total


@_part
def _now_ns(loop: PortsLoopState) -> int:
    _clock_gettime(_CLOCK_MONOTONIC, loop.clock_address)
    return loop.clock.seconds * 1_000_000_000 + loop.clock.nanoseconds


@_part
def _write_headers(head: Octets, payload_bytes: int) -> None:
    """Set lengths and checksum of the headers in front of a payload."""
    _put(head, _IP + 2, IPV4_BYTES + UDP_BYTES + payload_bytes)
    _put(head, _UDP + 4, UDP_BYTES + payload_bytes)
    _put(head, _IP + 10, 0)
    total = _sum(head, _IP)
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    _put(head, _IP + 10, 0xFFFF - total)


@_part
def _receive(loop: PortsLoopState, control: Words, address: int) -> int:
    """Make frames, one after the other, of the datagrams of one system call. Return their number, 0 if none waits."""
    # The kernel replaces msg_namelen and msg_controllen by the lengths that it used, so both are set before each call.
    loop.receive.name_bytes = _NAME_BYTES
    loop.receive.control_bytes = _CONTROL_BYTES if loop.has_joined else 0
    size = _recvmsg(loop.fd, loop.receive_address, _MSG_DONTWAIT)
    if size < 0:
        return 0
    joined = loop.receive.control_bytes > 0  # nothing but UDP_GRO's message was asked for
    # UDP_GRO says in an int how long each joined datagram is. The last one may be shorter.
    segment = max(loop.receive_control.value, 1) if joined else size
    head, frames, train = loop.head, control[_FRAMES], loop.train
    offsets, lengths, ports = (
        integers_at(control[_OFFSETS]),
        integers_at(control[_LENGTHS]),
        integers_at(control[_PORTS]),
    )
    # The sender, in network order already.
    _memcpy(head + _IP + 12, address + _SENDER_AT + _ADDRESS_AT, 4)
    _memcpy(head + _UDP, address + _SENDER_AT + _PORT_AT, 2)
    count, used, taken, written = 0, 0, 0, -1
    while count == 0 or taken < size:
        payload = min(segment, size - taken)
        # Headers of equal payloads are equal: a train computes the IPv4 checksum once or twice.
        if payload != written:
            _write_headers(octets_at(head), payload)
            written = payload
        _memcpy(frames + used, head, HEADERS_BYTES)
        _memcpy(frames + used + HEADERS_BYTES, train + taken, payload)
        offsets[count], lengths[count], ports[count] = used, HEADERS_BYTES + payload, loop.ingress
        count, used, taken = count + 1, used + HEADERS_BYTES + payload, taken + payload
    loop.received += count
    loop.received_bytes += used
    return count


@_part
def _is_plain(out: Octets, first: int, length: int) -> bool:
    """Return whether `udp_frames.strip` takes a frame, and it has neither IPv4 options nor a UDP checksum."""
    ip, udp = first + _IP, first + _UDP
    # These tests are those of `udp_frames.strip`, so that both ways send and count the same frames.
    if length < HEADERS_BYTES or out[first + 12] != 8 or out[first + 13] != 0:
        return False
    if out[ip] != 0x45 or out[ip + 9] != PROTO_UDP or _get(out, ip + 6) & MORE_OR_OFFSET != 0:
        return False
    total, udp_bytes = _get(out, ip + 2), _get(out, udp + 4)
    if total > length - ETHERNET_BYTES or udp_bytes < UDP_BYTES or udp_bytes > total - IPV4_BYTES:
        return False
    address = _get(out, ip + 16) << 16 | _get(out, ip + 18)
    if address < FIRST_UNICAST or address >= END_UNICAST or _get(out, udp + 2) == 0:
        return False
    # The words of a header that holds its own checksum add up to 0 modulo 2^16 - 1 (RFC 1071).
    return _get(out, udp + 6) == 0 and _sum(out, ip) % 0xFFFF == 0


@_part
def _send_parts(loop: PortsLoopState, number: int, first: int, count: int) -> int:
    """Send datagrams of a group in one call of the kernel. Return 0 or the number of the error."""
    group = _group_in(loop.groups, number)
    to, address = octets_at(loop.send.name), group.address
    # In network order. `address` is IPv4 address << 16 | UDP port.
    _put(to, _PORT_AT, address & 0xFFFF)
    _put(to, _ADDRESS_AT, (address >> 32) & 0xFFFF)
    _put(to, _ADDRESS_AT + 2, (address >> 16) & 0xFFFF)
    # The payloads lie apart in the outputs, and the kernel gathers them.
    loop.send.vectors = loop.parts + _VECTOR_BYTES * (number * MAX_SEGMENTS + first)
    loop.send.vector_count = count
    # UDP_SEGMENT is given for several datagrams only.
    loop.send.control_bytes = _CONTROL_BYTES if count > 1 else 0
    loop.send_control.value = _int32(group.size)
    if _sendmsg(_egress_in(loop.egresses, group.port).fd, loop.send_address, 0) < 0:
        return _errno()[0]
    return 0


@_part
def _count(egress: Egress, wrong: int, frames: int, frame_bytes: int) -> None:
    """Count frames that were sent, or not."""
    if wrong == 0:
        egress.sent += frames
        egress.sent_bytes += frame_bytes
    elif wrong in (_EAGAIN, _ENOBUFS):
        egress.queue_full += frames
    else:
        egress.send_error += frames
        egress.alone_errno = wrong


@_part
def _send_group(loop: PortsLoopState, number: int) -> None:
    """Send the datagrams of a group together, or one by one where they cannot be sent together."""
    group = _group_in(loop.groups, number)
    count, egress = group.count, _egress_in(loop.egresses, group.port)
    if count == 0:
        return
    wrong = _send_parts(loop, number, 0, count)
    # A path without checksum offload or with a small MTU refuses segments. It may take the datagrams one by one.
    if count > 1 and wrong in (_EMSGSIZE, _EIO, _EINVAL):
        egress.together_errno = wrong
        for part in range(count):
            size = integers_at(loop.sizes)[number * MAX_SEGMENTS + part]
            _count(egress, _send_parts(loop, number, part, 1), 1, size)
    else:
        _count(egress, wrong, count, group.bytes)
    group.count = 0
    group.bytes = 0


@_part
def _send_all(loop: PortsLoopState) -> None:
    for number in range(loop.group_count):
        _send_group(loop, number)
    loop.group_count = 0


@_part
def _find_group(loop: PortsLoopState, port: int, address: int, guess: int) -> int:
    """Return the group of a destination, a new one if it has none. Try `guess` first."""
    count = loop.group_count
    # The search begins at `guess`: the copies of one multicast go to the same destinations in the same order.
    for step in range(count):
        number = guess + step if guess + step < count else guess + step - count
        group = _group_in(loop.groups, number)
        if group.address == address and group.port == port:
            return number
    # All groups leave, not the fullest alone: then the numbers of groups stay dense, and each destination keeps its
    # order.
    if count == DESTINATIONS:
        _send_all(loop)
        count = 0
    group = _group_in(loop.groups, count)
    group.port, group.address, group.count, group.bytes = port, address, 0, 0
    loop.group_count = count + 1
    return count


@_part
def _queue(loop: PortsLoopState, out_at: int, port: int, first: int, length: int, guess: int) -> int:
    """Put a frame after the others of its destination. Return the group, or -1 if the frame is not plain.

    `out_at`: the address of the outputs.
    """
    out = octets_at(out_at)
    if port >= PORTS or _egress_in(loop.egresses, port).fd < 0 or not _is_plain(out, first, length):
        return -1
    ip, udp = first + _IP, first + _UDP
    address = (_get(out, ip + 16) << 16 | _get(out, ip + 18)) << 16 | _get(out, udp + 2)
    size = _get(out, udp + 4) - UDP_BYTES
    number = _find_group(loop, port, address, guess)
    group, most = _group_in(loop.groups, number), _egress_in(loop.egresses, port).most
    count, common = group.count, group.size
    # The kernel cuts at one size, and only the last piece may be shorter. An empty datagram cannot be a segment.
    if count > 0 and (size > common or count == most or (count + 1) * common > MAX_PAYLOAD_BYTES or size == 0):
        _send_group(loop, number)
        count = 0
    if count == 0:
        group.size = size
        common = size
    place = number * MAX_SEGMENTS + count
    part = _part_in(loop.parts, place)
    part.address, part.bytes = out_at + first + HEADERS_BYTES, size
    integers_at(loop.sizes)[place] = length
    group.count = count + 1
    group.bytes += length
    if size < common or size == 0:  # the kernel takes a shorter datagram as the last one only
        _send_group(loop, number)
    return number


@_part
def _queue_outputs(loop: PortsLoopState, control: Words) -> bool:
    """Queue the engine's outputs since the last call. Return true where all of them are plain."""
    guess, out = 0, control[_OUT]
    ports, lengths = integers_at(control[_OUT_PORTS]), integers_at(control[_OUT_LENGTHS])
    while loop.next < control[_OUTPUTS]:
        number, first = loop.next, loop.next_at
        length = lengths[number]
        group = _queue(loop, out, ports[number], first, length, guess)
        if group < 0:
            return False
        guess = group + 1 if group + 1 < loop.group_count else 0  # copies of a multicast go to one after the other
        loop.next, loop.next_at = number + 1, first + length
    return True


@_part
def _send_outputs(loop: PortsLoopState, control: Words) -> None:
    """Send all that is queued, and let the engine write its outputs from the beginning."""
    _send_all(loop)
    control[_OUTPUTS] = control[_OUT_USED] = 0
    loop.next = loop.next_at = 0


@_part
def _run_train(loop: PortsLoopState, control: Words, count: int) -> bool:
    """Run the frames of a train and queue their outputs. Return true where all have run and caused plain frames."""
    # OUTPUTS and OUT_USED are not reset here: outputs of several trains wait together until they are sent.
    control[_FRAMES_TO_RUN], control[_DONE], control[_STEPS_TAKEN] = count, 0, 0
    while True:
        before = control[_DONE]
        _call(loop.run, loop.state, loop.control)
        loop.processed += control[_DONE] - before
        if not _queue_outputs(loop, control):
            return False
        if control[_DONE] == count:
            return True
        # The engine stops where outputs might not fit, or to let the control plane in after many steps.
        was_empty = before == control[_DONE] and control[_OUTPUTS] == 0
        if was_empty or control[_STEPS_TAKEN] > 0:
            return False
        _send_outputs(loop, control)


@_part
def _waits_for_more(loop: PortsLoopState) -> bool:
    """Wait for a datagram. Return true where one has arrived, false where Python is wanted, or a signal came.

    A train is answered within microseconds. A return to Python takes longer than that.
    """
    if loop.waker < 0:
        return False
    loop.socket_poll.fd, loop.waker_poll.fd = _int32(loop.fd), _int32(loop.waker)
    loop.socket_poll.events = loop.waker_poll.events = _int16(_POLLIN)
    loop.socket_poll.revents = loop.waker_poll.revents = _int16(0)
    found = _ppoll(loop.polls_address, 2, 0, 0)
    # The waker goes first: who writes to it waits for the gate. What was written stays there for the selector.
    return found > 0 and loop.waker_poll.revents == 0


@_part
def _serve(address: int) -> None:
    loop = _loop_at(address)
    control = integers_at(loop.control)
    loop.has_rest = False
    loop.received = loop.received_bytes = loop.processed = loop.busy_ns = loop.group_count = 0
    _send_outputs(loop, control)
    # The engine's clock at the beginning, which Python has set. A call may last for hours.
    origin_ns = _now_ns(loop) - 1000 * control[_NOW]
    # The limit bounds the time that others wait for the gate under endless traffic, where this loop never waits.
    while not loop.has_rest and loop.received < loop.limit:
        count = _receive(loop, control, address)
        if count == 0:
            started_ns = _now_ns(loop)
            _send_outputs(loop, control)
            loop.busy_ns += _now_ns(loop) - started_ns
            if not _waits_for_more(loop):
                break
            continue
        loop.train_count = count
        started_ns = _now_ns(loop)
        control[_NOW] = (started_ns - origin_ns) // 1000
        if not _run_train(loop, control, count):
            loop.has_rest = True
        # More outputs than this leave the cache before the kernel copies them.
        elif control[_OUT_USED] > loop.held_bytes:
            _send_outputs(loop, control)
        loop.busy_ns += _now_ns(loop) - started_ns
    started_ns = _now_ns(loop)
    _send_all(loop)
    loop.busy_ns += _now_ns(loop) - started_ns


def serve(address: int) -> None:
    """Carry frames until `limit` have come, one is not plain, or none waits. `address`: of the `PortsLoopState`.

    With a `waker` the call waits for more where none waits, until something can be read there. Where a frame is not
    plain, the call sets `has_rest`. Outputs from `next` on are then neither sent nor counted, frames of the train from
    the engine's DONE on have not run, and all earlier outputs have been sent.
    """
    _serve(address)


def compile_serve() -> tuple[str, str]:
    """Return LLVM's text of `serve` for this processor, and the function's name in it.

    The function takes a pointer for its result and one for exceptions, which it has not, before its arguments, and
    returns 0: the convention of numba's functions.
    """
    # No wrappers: the function is called by its address. "numpy" leaves out tests for division by zero, which raise.
    options = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled = _numba.njit(_types.void(_types.int64), **options)(serve)
    (text,), (result,) = compiled.inspect_llvm().values(), compiled.overloads.values()
    return str(text), str(result.fndesc.mangled_name)
