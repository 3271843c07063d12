# SPDX-License-Identifier: Apache-2.0
"""The loop of UDP ports for numba: receive, run the engine, send, without the interpreter lock.

`udp_loop` compiles `serve` and keeps the machine code. No other module imports this one. Memory comes as pointers to
int64 or uint8 elements, and every number is a signed integer: numba makes a float of int64 and uint64.

The kernel's calls take a msghdr as Linux has it on 64 bits: recvmsg(2), sendmsg(2), and udp(7) for UDP_GRO and
UDP_SEGMENT.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeVar

from hopsum_switch.native.memory_layout import ControlWord
from hopsum_switch.ports import udp_layout as at
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

# numba and llvmlite come without types, and `import_module` keeps mypy from looking into them.
_numba: Any = import_module("numba")
_ir: Any = import_module("llvmlite.ir")
_types: Any = _numba.types

F = TypeVar("F", bound=Callable[..., Any])


class Pointer(Protocol):
    """A pointer to integers in memory, as the loop has it. Nothing checks an index."""

    def __getitem__(self, index: int) -> int: ...

    def __setitem__(self, index: int, value: int) -> None: ...


# Numbers of the Linux ABI, the same on x86-64 and arm64.
_MSG_DONTWAIT, _CLOCK_MONOTONIC = 0x40, 1
_POLLIN = select.POLLIN
_EAGAIN, _ENOBUFS, _EMSGSIZE, _EIO, _EINVAL = errno.EAGAIN, errno.ENOBUFS, errno.EMSGSIZE, errno.EIO, errno.EINVAL
_IP, _UDP = ETHERNET_BYTES, ETHERNET_BYTES + IPV4_BYTES
_FRAMES_TO_RUN, _DONE, _STEPS_TAKEN = int(ControlWord.COUNT), int(ControlWord.DONE), int(ControlWord.STEPS_TAKEN)
_OUTPUTS, _OUT_USED, _NOW = int(ControlWord.OUTPUTS), int(ControlWord.OUT_USED), int(ControlWord.NOW)

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
_errno: Callable[[], Pointer] = _types.ExternalFunction("__errno_location", _types.CPointer(_types.int32)())


class Memory(NamedTuple):
    """Pointers to the arrays of `udp_layout`, of the engine, and of the frames of one train."""

    loop: Pointer
    control: Pointer  # of the engine, see `native.memory_layout`
    socket: Pointer
    socket_bytes: Pointer  # the same memory
    egress: Pointer
    groups: Pointer
    parts: Pointer
    sizes: Pointer
    offsets: Pointer  # of the train's frames
    lengths: Pointer
    ports: Pointer
    out_ports: Pointer
    out_lengths: Pointer
    out: Pointer


_BYTES = ("socket_bytes", "out")
SIGNATURE: Any = _types.void(
    *(_types.CPointer(_types.uint8 if name in _BYTES else _types.int64) for name in Memory._fields)
)


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
def _get(data: Pointer, place: int) -> int:
    """Return two bytes as a number."""
    return data[place] * 256 + data[place + 1]


@_part
def _put(data: Pointer, place: int, value: int) -> None:
    """Write a number as two bytes."""
    data[place] = (value >> 8) & 255
    data[place + 1] = value & 255


@_part
def _sum(data: Pointer, first: int) -> int:
    """Return the sum of the ten words of an IPv4 header."""
    total = 0
    for place in range(first, first + IPV4_BYTES, 2):
        total += _get(data, place)
    return total


@_part
def _now_ns(m: Memory) -> int:
    _clock_gettime(_CLOCK_MONOTONIC, m.loop[at.SOCKET_AT] + 8 * at.CLOCK)
    return m.socket[at.CLOCK] * 1_000_000_000 + m.socket[at.CLOCK + 1]


@_part
def _write_headers(m: Memory, payload_bytes: int) -> None:
    """Set lengths and checksum of the headers in front of a payload."""
    data, head = m.socket_bytes, 8 * at.HEAD
    _put(data, head + _IP + 2, IPV4_BYTES + UDP_BYTES + payload_bytes)
    _put(data, head + _UDP + 4, UDP_BYTES + payload_bytes)
    _put(data, head + _IP + 10, 0)
    total = _sum(data, head + _IP)
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    _put(data, head + _IP + 10, 0xFFFF - total)


@_part
def _receive(m: Memory) -> int:
    """Make frames, one after the other, of the datagrams of one system call. Return their number, 0 if none waits."""
    loop, socket, data = m.loop, m.socket, m.socket_bytes
    # The kernel replaces msg_namelen and msg_controllen by the lengths that it used, so both are set before each call.
    socket[at.RX + 1] = 16
    socket[at.RX + 5] = 24 if loop[at.JOINED] else 0
    size = _recvmsg(loop[at.FD], loop[at.SOCKET_AT] + 8 * at.RX, _MSG_DONTWAIT)
    if size < 0:
        return 0
    joined = socket[at.RX + 5] > 0  # nothing but UDP_GRO's message was asked for
    # UDP_GRO says in an int how long each joined datagram is. The last one may be shorter.
    segment = max(socket[at.RX_CONTROL + 2] & 0xFFFFFFFF, 1) if joined else size
    # The sender, in network order already: in a sockaddr_in the address is at offset 4 and the port at offset 2.
    for byte in range(4):
        data[8 * at.HEAD + _IP + 12 + byte] = data[8 * at.RX_NAME + 4 + byte]
    for byte in range(2):
        data[8 * at.HEAD + _UDP + byte] = data[8 * at.RX_NAME + 2 + byte]
    count, used, taken, written = 0, 0, 0, -1
    while count == 0 or taken < size:
        payload = min(segment, size - taken)
        # Headers of equal payloads are equal: a train computes the IPv4 checksum once or twice.
        if payload != written:
            _write_headers(m, payload)
            written = payload
        _memcpy(loop[at.FRAMES_AT] + used, loop[at.SOCKET_AT] + 8 * at.HEAD, HEADERS_BYTES)
        _memcpy(loop[at.FRAMES_AT] + used + HEADERS_BYTES, loop[at.TRAIN_AT] + taken, payload)
        m.offsets[count], m.lengths[count], m.ports[count] = used, HEADERS_BYTES + payload, loop[at.INGRESS]
        count, used, taken = count + 1, used + HEADERS_BYTES + payload, taken + payload
    loop[at.RECEIVED] += count
    loop[at.RECEIVED_BYTES] += used
    return count


@_part
def _is_plain(out: Pointer, first: int, length: int) -> bool:
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
def _send_parts(m: Memory, group: int, first: int, count: int) -> int:
    """Send datagrams of a group in one call of the kernel. Return 0 or the number of the error."""
    row, name = group * at.GROUP_WORDS, 8 * at.TX_NAME
    address = m.groups[row + at.ADDRESS]
    # The sockaddr_in of the receiver. `address` is IPv4 address << 16 | UDP port.
    _put(m.socket_bytes, name + 2, address & 0xFFFF)
    _put(m.socket_bytes, name + 4, (address >> 32) & 0xFFFF)
    _put(m.socket_bytes, name + 6, (address >> 16) & 0xFFFF)
    # msg_iov and msg_iovlen: the payloads lie apart in the outputs, and the kernel gathers them.
    m.socket[at.TX + 2] = m.loop[at.PARTS_AT] + 16 * (group * at.MAX_SEGMENTS + first)
    m.socket[at.TX + 3] = count
    # msg_controllen: UDP_SEGMENT is given for several datagrams only.
    m.socket[at.TX + 5] = 24 if count > 1 else 0
    m.socket[at.TX_CONTROL + 2] = m.groups[row + at.SIZE]
    fd = m.egress[m.groups[row + at.PORT] * at.EGRESS_WORDS + at.EGRESS_FD]
    if _sendmsg(fd, m.loop[at.SOCKET_AT] + 8 * at.TX, 0) < 0:
        return _errno()[0]
    return 0


@_part
def _count(m: Memory, row: int, wrong: int, frames: int, frame_bytes: int) -> None:
    """Count frames that were sent, or not."""
    if wrong == 0:
        m.egress[row + at.SENT] += frames
        m.egress[row + at.SENT_BYTES] += frame_bytes
    elif wrong in (_EAGAIN, _ENOBUFS):
        m.egress[row + at.QUEUE_FULL] += frames
    else:
        m.egress[row + at.SEND_ERROR] += frames
        m.egress[row + at.ALONE_ERRNO] = wrong


@_part
def _send_group(m: Memory, group: int) -> None:
    """Send the datagrams of a group together, or one by one where they cannot be sent together."""
    at_group = group * at.GROUP_WORDS
    count, row = m.groups[at_group + at.COUNT], m.groups[at_group + at.PORT] * at.EGRESS_WORDS
    if count == 0:
        return
    wrong = _send_parts(m, group, 0, count)
    # A path without checksum offload or with a small MTU refuses segments. It may take the datagrams one by one.
    if count > 1 and wrong in (_EMSGSIZE, _EIO, _EINVAL):
        m.egress[row + at.TOGETHER_ERRNO] = wrong
        for part in range(count):
            _count(m, row, _send_parts(m, group, part, 1), 1, m.sizes[group * at.MAX_SEGMENTS + part])
    else:
        _count(m, row, wrong, count, m.groups[at_group + at.BYTES])
    m.groups[at_group + at.COUNT] = 0
    m.groups[at_group + at.BYTES] = 0


@_part
def _send_all(m: Memory) -> None:
    for group in range(m.loop[at.GROUPS]):
        _send_group(m, group)
    m.loop[at.GROUPS] = 0


@_part
def _find_group(m: Memory, port: int, address: int, guess: int) -> int:
    """Return the group of a destination, a new one if it has none. Try `guess` first."""
    count = m.loop[at.GROUPS]
    # The search begins at `guess`: the copies of one multicast go to the same destinations in the same order.
    for step in range(count):
        group = guess + step if guess + step < count else guess + step - count
        row = group * at.GROUP_WORDS
        if m.groups[row + at.ADDRESS] == address and m.groups[row + at.PORT] == port:
            return group
    # All groups leave, not the fullest alone: then the numbers of groups stay dense, and each destination keeps its
    # order.
    if count == at.DESTINATIONS:
        _send_all(m)
        count = 0
    row = count * at.GROUP_WORDS
    m.groups[row + at.PORT], m.groups[row + at.ADDRESS] = port, address
    m.groups[row + at.COUNT], m.groups[row + at.BYTES] = 0, 0
    m.loop[at.GROUPS] = count + 1
    return count


@_part
def _queue(m: Memory, port: int, first: int, length: int, guess: int) -> int:
    """Put a frame after the others of its destination. Return the group, or -1 if the frame is not plain."""
    if port >= at.PORTS or m.egress[port * at.EGRESS_WORDS] < 0 or not _is_plain(m.out, first, length):
        return -1
    ip, udp = first + _IP, first + _UDP
    address = (_get(m.out, ip + 16) << 16 | _get(m.out, ip + 18)) << 16 | _get(m.out, udp + 2)
    size = _get(m.out, udp + 4) - UDP_BYTES
    group = _find_group(m, port, address, guess)
    row, most = group * at.GROUP_WORDS, m.egress[port * at.EGRESS_WORDS + at.MOST]
    count, common = m.groups[row + at.COUNT], m.groups[row + at.SIZE]
    # The kernel cuts at one size, and only the last piece may be shorter. An empty datagram cannot be a segment.
    if count > 0 and (size > common or count == most or (count + 1) * common > at.MAX_PAYLOAD_BYTES or size == 0):
        _send_group(m, group)
        count = 0
    if count == 0:
        m.groups[row + at.SIZE] = size
        common = size
    part = group * at.MAX_SEGMENTS + count
    m.parts[2 * part], m.parts[2 * part + 1] = m.loop[at.OUT_AT] + first + HEADERS_BYTES, size
    m.sizes[part] = length
    m.groups[row + at.COUNT] = count + 1
    m.groups[row + at.BYTES] += length
    if size < common or size == 0:  # the kernel takes a shorter datagram as the last one only
        _send_group(m, group)
    return group


@_part
def _queue_outputs(m: Memory) -> bool:
    """Queue the engine's outputs since the last call. Return true where all of them are plain."""
    guess = 0
    while m.loop[at.NEXT] < m.control[_OUTPUTS]:
        number, first = m.loop[at.NEXT], m.loop[at.NEXT_AT]
        length = m.out_lengths[number]
        group = _queue(m, m.out_ports[number], first, length, guess)
        if group < 0:
            return False
        guess = group + 1 if group + 1 < m.loop[at.GROUPS] else 0  # copies of a multicast go to one after the other
        m.loop[at.NEXT], m.loop[at.NEXT_AT] = number + 1, first + length
    return True


@_part
def _send_outputs(m: Memory) -> None:
    """Send all that is queued, and let the engine write its outputs from the beginning."""
    _send_all(m)
    m.control[_OUTPUTS] = m.control[_OUT_USED] = m.loop[at.NEXT] = m.loop[at.NEXT_AT] = 0


@_part
def _run_train(m: Memory, count: int) -> bool:
    """Run the frames of a train and queue their outputs. Return true where all have run and caused plain frames."""
    # OUTPUTS and OUT_USED are not reset here: outputs of several trains wait together until they are sent.
    m.control[_FRAMES_TO_RUN], m.control[_DONE], m.control[_STEPS_TAKEN] = count, 0, 0
    while True:
        before = m.control[_DONE]
        _call(m.loop[at.RUN], m.loop[at.STATE], m.loop[at.CONTROL])
        m.loop[at.PROCESSED] += m.control[_DONE] - before
        if not _queue_outputs(m):
            return False
        if m.control[_DONE] == count:
            return True
        # The engine stops where outputs might not fit, or to let the control plane in after many steps.
        was_empty = before == m.control[_DONE] and m.control[_OUTPUTS] == 0
        if was_empty or m.control[_STEPS_TAKEN] > 0:
            return False
        _send_outputs(m)


@_part
def _waits_for_more(m: Memory) -> bool:
    """Wait for a datagram. Return true where one has arrived, false where Python is wanted, or a signal came.

    A train is answered within microseconds. A return to Python takes longer than that.
    """
    if m.loop[at.WAKER] < 0:
        return False
    # A pollfd in one word: the descriptor in the low half, the events in the next 16 bits, what happened in the last.
    m.socket[at.POLL] = m.loop[at.FD] | _POLLIN << 32
    m.socket[at.POLL + 1] = m.loop[at.WAKER] | _POLLIN << 32
    found = _ppoll(m.loop[at.SOCKET_AT] + 8 * at.POLL, 2, 0, 0)
    # The waker goes first: who writes to it waits for the gate. What was written stays there for the selector.
    return found > 0 and m.socket[at.POLL + 1] >> 48 == 0


@_part
def _serve(m: Memory) -> None:
    loop = m.loop
    loop[at.REST] = loop[at.RECEIVED] = loop[at.RECEIVED_BYTES] = loop[at.PROCESSED] = loop[at.BUSY_NS] = 0
    loop[at.GROUPS] = 0
    _send_outputs(m)
    # The engine's clock at the beginning, which Python has set. A call may last for hours.
    origin_ns = _now_ns(m) - 1000 * m.control[_NOW]
    # LIMIT bounds the time that others wait for the gate under endless traffic, where this loop never waits.
    while loop[at.REST] == 0 and loop[at.RECEIVED] < loop[at.LIMIT]:
        count = _receive(m)
        if count == 0:
            started_ns = _now_ns(m)
            _send_outputs(m)
            loop[at.BUSY_NS] += _now_ns(m) - started_ns
            if not _waits_for_more(m):
                break
            continue
        loop[at.TRAIN] = count
        started_ns = _now_ns(m)
        m.control[_NOW] = (started_ns - origin_ns) // 1000
        if not _run_train(m, count):
            loop[at.REST] = 1
        # More outputs than this leave the cache before the kernel copies them.
        elif m.control[_OUT_USED] > loop[at.HELD_BYTES]:
            _send_outputs(m)
        loop[at.BUSY_NS] += _now_ns(m) - started_ns
    started_ns = _now_ns(m)
    _send_all(m)
    loop[at.BUSY_NS] += _now_ns(m) - started_ns


def serve(
    loop: Pointer, control: Pointer, socket: Pointer, socket_bytes: Pointer, egress: Pointer, groups: Pointer,
    parts: Pointer, sizes: Pointer, offsets: Pointer, lengths: Pointer, ports: Pointer, out_ports: Pointer,
    out_lengths: Pointer, out: Pointer,
) -> None:  # fmt: skip
    """Carry frames until LIMIT have come, one is not plain, or none waits. The arguments are those of `Memory`.

    With a WAKER the call waits for more where none waits, until something can be read there. Where a frame is not
    plain REST is 1. Outputs from NEXT on are then neither sent nor counted, frames of the train from the engine's DONE
    on have not run, and all earlier outputs have been sent.
    """
    _serve(
        Memory(
            loop, control, socket, socket_bytes, egress, groups, parts, sizes, offsets, lengths, ports, out_ports,
            out_lengths, out,
        )
    )  # fmt: skip


def compile_serve() -> tuple[str, str]:
    """Return LLVM's text of `serve` for this processor, and the function's name in it.

    The function takes a pointer for its result and one for exceptions, which it has not, before its arguments, and
    returns 0: the convention of numba's functions.
    """
    # No wrappers: the function is called by its address. "numpy" leaves out tests for division by zero, which raise.
    options = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled = _numba.njit(SIGNATURE, **options)(serve)
    (text,), (result,) = compiled.inspect_llvm().values(), compiled.overloads.values()
    return str(text), str(result.fndesc.mangled_name)
