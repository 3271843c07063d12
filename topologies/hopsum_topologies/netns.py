# SPDX-License-Identifier: Apache-2.0
"""Network namespaces and veth pairs through the `ip` command.

A namespace's name carries the process id of its owner (`hopsum-<pid>-<n>`), so that the ones of processes that were
killed can be told apart and removed: by its cleanup process at once, or by the next owner. Interfaces live inside
namespaces only, never in the machine's own. IPv6 is off (its router solicitations would show up as traffic), and so
are checksum, segmentation and GRO offloads on a veth unless asked for: a switch in user space must see finished frames,
one packet each.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import itertools
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from hopsum_base.owned_folder import remove_orphaned_folders
from hopsum_topologies.errors import TopologyError

_PACKAGE_ROOT = Path(__file__).resolve().parents[1]
_NAMESPACES = Path("/var/run/netns")
_NAME = re.compile(r"hopsum-(\d+)-\d+")
_CLONE_NEWNET = 0x40000000
_INTERFACE_NAME_BYTES = 15
_SIOCETHTOOL = 0x8946
# linux/ethtool.h: receive and transmit checksums, scatter-gather, TSO, GSO, GRO
_ETHTOOL_OFFLOADS = (0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C)
# The kernel takes seconds to remove many namespaces, and `ip` waits for its lock meanwhile.
_IP_TIMEOUT_S = 20.0
_CARRY_S = 20.0
_POLL_S = 0.005
_numbers = itertools.count()
_owned: set[str] = set()
_OWNER_GONE_S = 10.0
_cleanup_processes: dict[int, int] = {}
"""Pipes by process id. A forked child must have a pipe of its own."""


class VethPair(NamedTuple):
    """The interface names of the two ends of a veth pair."""

    left: str
    right: str


def enter_namespace(name: str) -> None:
    """Move the calling thread into a named network namespace, where it stays.

    Raises TopologyError when there is no such namespace, or without root.
    """
    try:
        descriptor = os.open(_NAMESPACES / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TopologyError(f"network namespace {name} cannot be opened: {error}") from error
    try:
        _set_namespace(descriptor)
    finally:
        os.close(descriptor)


def _set_namespace(descriptor: int) -> None:
    # os.setns needs Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise TopologyError(f"setns failed: {os.strerror(ctypes.get_errno())} (it needs root)")


def _ip(*arguments: str) -> str:
    try:
        done = subprocess.run(("ip", *arguments), capture_output=True, text=True, timeout=_IP_TIMEOUT_S, check=False)
    except OSError as error:
        raise TopologyError(f"the `ip` command cannot be run: {error}; install iproute2") from error
    except subprocess.TimeoutExpired as error:
        raise TopologyError(f"`ip {' '.join(arguments)}` did not end in {_IP_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise TopologyError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout


def remove_stale_namespaces() -> list[str]:
    """Remove the namespaces whose owner is dead, and kill the processes in them. Return the namespaces' names.

    Raises TopologyError when one cannot be removed.
    """
    stale = []
    for path in sorted(_NAMESPACES.glob("hopsum-*")) if _NAMESPACES.is_dir() else []:
        match = _NAME.fullmatch(path.name)
        if match is None or path.name in _owned:
            continue
        pid = int(match[1])
        # A name with our own process id that we did not make is left from a dead process with the same id.
        if pid == os.getpid() or not Path(f"/proc/{pid}").exists():
            try:
                kill_processes_in(path.name)
                _ip("netns", "delete", path.name)
            except TopologyError:
                # Another owner may have removed the same namespace at the same time.
                if path.exists():
                    raise
            stale.append(path.name)
    return stale


def processes_in(name: str) -> set[int]:
    """Return the ids of the processes in a namespace. Raises TopologyError when there is no such namespace."""
    return set(map(int, _ip("netns", "pids", name).split()))


def kill_processes_in(name: str, but: Collection[int] = ()) -> None:
    """Send SIGKILL to all processes in a namespace but this process and those in `but`, and do not wait for their end.

    Raises TopologyError when there is no such namespace.
    """
    for pid in processes_in(name) - {os.getpid(), *but}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _start_cleanup_process() -> None:
    """Start a process that removes this process's namespaces and temporary directories, should it be killed.

    The cleanup process has a pipe on stdin that no other process holds. The end of the pipe is the end of the owner.
    An orderly owner has removed all of them itself.
    """
    if os.getpid() in _cleanup_processes:
        return
    path = f"import sys; sys.path.insert(0, {str(_PACKAGE_ROOT)!r})"
    code = f"{path}; from hopsum_topologies.netns import clean_up_after; clean_up_after(int(sys.argv[1]))"
    theirs, ours = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(os.getpid())],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(theirs)
    # The child outlives this process on purpose. Popen would warn about a child that was never waited for.
    child.returncode = 0
    _cleanup_processes[os.getpid()] = ours


def clean_up_after(owner_pid: int) -> None:
    """Be the cleanup process: wait for the end of the owner, then remove its namespaces and directories.

    The end of the owner is that of stdin. SIGINT, SIGTERM and SIGHUP are ignored from now on. Raises TopologyError when
    a namespace cannot be removed.
    """
    # A terminal sends these signals to the owner's whole group. The cleanup comes after the owner's end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    # The kernel closes the pipe before the process id is free, and a living owner's leftovers are not stale.
    give_up = time.monotonic() + _OWNER_GONE_S
    while Path(f"/proc/{owner_pid}").exists() and time.monotonic() < give_up:
        time.sleep(_POLL_S)
    remove_stale_namespaces()
    remove_orphaned_folders()


def disable_offloads(interface: str) -> None:
    """Switch off all checksum, segmentation and GRO offloads of an interface of this thread's namespace.

    Raises TopologyError.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        for command in _ETHTOOL_OFFLOADS:
            _ethtool_clear(handle, interface, command)


def add_neighbour(interface: str, ip: str, mac: str) -> None:
    """Set the MAC address of an IPv4 address at an interface of this thread's namespace. Raises TopologyError.

    The entry is permanent, so the kernel never asks for the address. A lost ARP packet would delay a sum by the second
    until it asks again.
    """
    _ip("neigh", "add", ip, "dev", interface, "lladdr", mac, "nud", "permanent")


class Namespace:
    """A network namespace with loopback up. The context manager always removes it.

    Raises TopologyError on construction without root or the `ip` command. Programs started inside must have
    ended before `close`: the kernel keeps a namespace alive as long as a process is in it. Another process, started at
    the first construction, removes all namespaces of this process when this process is killed.
    """

    def __init__(self, of_process: int | None = None) -> None:
        """Make a namespace, or give a name to the one of process `of_process`. Remove stale namespaces first.

        The namespace of another process is left as it is: loopback and IPv6 are not changed.
        """
        remove_stale_namespaces()
        # Before the namespace is made: an owner that is killed in between must have a cleanup process already.
        _start_cleanup_process()
        self.name = f"hopsum-{os.getpid()}-{next(_numbers)}"
        try:
            _ip("netns", *(("add", self.name) if of_process is None else ("attach", self.name, str(of_process))))
        except TopologyError as error:
            raise TopologyError(f"{error}; network namespaces need root") from error
        _owned.add(self.name)
        if of_process is None:
            self._begin()

    def _begin(self) -> None:
        try:
            # Before loopback is up, since an interface sends its first router solicitation when it comes up.
            with self.inside():
                for scope in ("all", "default"):
                    Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6").write_text("1")
            self.ip("link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def ip(self, *arguments: str) -> str:
        """Run `ip -n <this namespace> ARGUMENTS`. Return its output. Raises TopologyError: it fails, or takes 20 s."""
        return _ip("-n", self.name, *arguments)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run the block in this namespace: the calling thread only. Sockets made inside stay there.

        Raises TopologyError before the block when the namespace cannot be entered.
        """
        # thread-self, not self: another thread of this process may be in another namespace.
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter_namespace(self.name)
            try:
                yield
            finally:
                _set_namespace(home)
        finally:
            os.close(home)

    def add_veth(
        self,
        left: str,
        right: str,
        peer: Namespace | None = None,
        *,
        mtu_bytes: int = 9000,
        offloads: bool = False,
    ) -> VethPair:
        """Make a veth pair, `left` here and `right` in `peer` (default: here), up, with offloads only if asked for.

        Returns when both ends carry frames. Raises TopologyError.
        """
        for name in (left, right):
            if len(name) > _INTERFACE_NAME_BYTES:
                raise TopologyError(f"interface name {name} is longer than {_INTERFACE_NAME_BYTES} bytes")
        other = peer or self
        # Made with the peer in its namespace at once: no interface appears among the machine's own.
        self.ip("link", "add", "name", left, "type", "veth", "peer", "name", right, "netns", other.name)
        for namespace, name in ((self, left), (other, right)):
            namespace.ip("link", "set", "dev", name, "mtu", str(mtu_bytes), "up")
            if not offloads:
                namespace.disable_offloads(name)
        for namespace, name in ((self, left), (other, right)):
            namespace.wait_until_carrying(name)
        return VethPair(left, right)

    def wait_until_carrying(self, interface: str) -> None:
        """Wait until an interface that is up sends frames: the kernel activates its queue a moment later.

        Before that, frames are lost without an error. Raises TopologyError after 20 s: an end is down.
        """
        give_up = time.monotonic() + _CARRY_S
        while " qdisc noop " in self.ip("link", "show", "dev", interface):
            if time.monotonic() > give_up:
                raise TopologyError(f"{interface} in {self.name} carries nothing after {_CARRY_S} s: are both ends up?")
            time.sleep(_POLL_S)

    def disable_offloads(self, interface: str) -> None:
        """Switch off all checksum, segmentation and GRO offloads of an interface. Raises TopologyError."""
        with self.inside():
            disable_offloads(interface)

    def configure_interface(self, interface: str, mac: str, ip: str, neighbour: tuple[str, str]) -> None:
        """Give an interface a MAC address, an IPv4 address in a /24, and a permanent neighbour (IPv4, MAC).

        Raises TopologyError.
        """
        self.ip("link", "set", "dev", interface, "address", mac)
        self.ip("addr", "add", f"{ip}/24", "dev", interface)
        with self.inside():
            add_neighbour(interface, *neighbour)

    def close(self) -> None:
        """Remove the namespace and every interface in it. May be repeated. Raises TopologyError."""
        if self.name in _owned:
            _owned.discard(self.name)
            _ip("netns", "delete", self.name)

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ethtool_clear(handle: socket.socket, interface: str, command: int) -> None:
    value = array.array("B", struct.pack("=II", command, 0))
    # struct ifreq: the name, then a pointer to struct ethtool_value.
    request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
    try:
        fcntl.ioctl(handle, _SIOCETHTOOL, request)
    except OSError as error:
        raise TopologyError(f"offload {command:#x} of {interface} cannot be switched off: {error}") from error
