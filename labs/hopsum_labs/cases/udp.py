# SPDX-License-Identifier: Apache-2.0
"""Level 2: contributions in UDP datagrams to the switch's own address. All other traffic is forwarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw
from scapy.utils import checksum

from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_labs.control_plane import ControlPlane
from hopsum_labs.lab_switch import Testbed
from hopsum_labs.packets import (
    AGGREGATION_PORT,
    CHUNK,
    SWITCH_IP,
    SWITCH_MAC,
    VALUES,
    Aggregation,
    Kind,
    differences,
    pad_frame,
    rank_at,
    summary,
    total,
    udp_contribution,
    worker_ip,
    worker_mac,
    worker_port,
)
from hopsum_labs.rule_checks import OTHER_KINDS, Case, expect, expect_nothing, expect_results, play_round, vectors
from hopsum_switch.engine import Output

_GROUP = 1
_RESULT_BYTES = 20 + 8 + 8 + 4 * VALUES
"""IPv4, UDP, the header and the values."""


def set_up(switch: ControlPlane, workers: int, *, port: Callable[[int], int] = worker_port) -> None:
    """Write the entries of the handout's control plane. Raises ProgramError.

    port: a function from a rank to the switch port of its worker.
    """
    # The switch answers from these addresses: they are entries, so that one program serves any network.
    own = {"mac": mac_to_int(SWITCH_MAC), "ip": ipv4_to_int(SWITCH_IP)}
    switch.set_default("MyIngress.job", "MyIngress.set_job", workers=workers, **own)
    switch.set_group(_GROUP, [port(rank) for rank in range(workers)])
    for rank in range(workers):
        mac = mac_to_int(worker_mac(rank))
        switch.insert("MyIngress.forward", {"hdr.ethernet.destination": mac}, "MyIngress.send_to", port=port(rank))
        address = {"mac": mac, "ip": ipv4_to_int(worker_ip(rank))}
        switch.insert("MyEgress.worker", {"standard.egress_port": port(rank)}, "MyEgress.to_worker", **address)


def contribute(
    switch: Testbed, rank: int, values: Sequence[int], *, through: int | None = None, **fields: Any
) -> list[Output]:
    """Send a rank's contribution into the port of rank `through` (None: its own). Return the packets sent in answer.

    `fields` are those of `udp_contribution`.
    """
    port = worker_port(rank if through is None else through)
    return switch.send(port, bytes(udp_contribution(rank, values, **fields)))


def play(switch: Testbed, contributions: Sequence[Sequence[int]], when: str = "a round", **fields: Any) -> list[Output]:
    """Play a round of UDP datagrams, and return the answers, as `play_round` does. Raises Failed.

    `fields` are those of `contribute`, for every contribution.
    """

    def send(rank: int, values: Sequence[int]) -> list[Output]:
        return contribute(switch, rank, values, **fields)

    answers = play_round(send, contributions, when)
    for answer in answers:
        packet = Ether(answer.frame)
        expect(UDP in packet, f"{when}: at port {answer.port} UDP was expected; this came: {packet.summary()}")
    return answers


def sum_over_udp(switch: Testbed) -> None:
    """Check three rounds of one, four and eight workers."""
    for workers in (1, 4, 8):
        switch.reload()
        set_up(switch, workers)
        for number in range(3):
            play(switch, vectors(workers, seed=number), f"round {number + 1} of {workers} workers", chunk=number)


def result_addresses(switch: Testbed) -> None:
    """Check that each copy of a RESULT has the addresses of its own worker, and of the switch by its entries."""
    set_up(switch, 3)
    expect_addresses(play(switch, vectors(3), chunk=CHUNK), CHUNK)
    # A program that has the switch's addresses built in must not pass.
    switch.reload()
    set_up(switch, 3)
    mac, ip = worker_mac(76), worker_ip(76)
    own = {"mac": mac_to_int(mac), "ip": ipv4_to_int(ip)}
    switch.set_default("MyIngress.job", "MyIngress.set_job", workers=3, **own)
    expect_addresses(play(switch, vectors(3), f"a round of a switch at {ip}", ip=ip), mac=mac, ip=ip)


def expect_addresses(answers: Sequence[Output], chunk: int = 0, *, mac: str = SWITCH_MAC, ip: str = SWITCH_IP) -> None:
    """Raise Failed unless each RESULT is of `chunk`, from the switch at `mac` and `ip`, to the worker at its port."""
    for answer in answers:
        packet, rank = Ether(answer.frame), rank_at(answer.port)
        assert rank is not None, "the ports of the answers are checked before"
        expect(UDP in packet, f"at port {answer.port} UDP was expected; this came: {packet.summary()}")
        addresses = (packet.src, packet.dst, packet[IP].src, packet[IP].dst)
        got = (*addresses, packet[UDP].sport, packet[UDP].dport, packet[Aggregation].chunk)
        wanted = (mac, worker_mac(rank), ip, worker_ip(rank), AGGREGATION_PORT, AGGREGATION_PORT, chunk)
        expect(
            got == wanted,
            f"the RESULT at port {answer.port} needs the Ethernet, IPv4 and UDP addresses (source, destination) "
            f"and the chunk {wanted}; it has {got}",
        )


def checksums(switch: Testbed, versions: int = 1) -> None:
    """Check that a host's network stack takes the RESULT of every round. Rounds use so many versions by turns."""
    set_up(switch, 3)

    def send(rank: int, values: Sequence[int]) -> list[Output]:
        packet = udp_contribution(rank, values, version=number % versions)
        # Rounds differ in what a RESULT must not keep, so a program that mends one round's packets only fails.
        packet[IP].ttl, packet[IP].id, packet[UDP].sport = 1 + 60 * number, 0x4FFF * number + rank, 1024 + number
        return switch.send(worker_port(rank), bytes(packet))

    for number in range(4):
        when = f"round {number + 1} of 3 workers"
        expect_sound(play_round(send, vectors(3, seed=number), when), when)


def expect_sound(answers: Sequence[Output], when: str) -> None:
    """Raise Failed unless a host takes each RESULT: lengths, no fragment, fresh time to live, checksums."""
    for answer in answers:
        packet = Ether(answer.frame)
        expect(UDP in packet, f"{when}: at port {answer.port} UDP was expected; this came: {packet.summary()}")
        ip, udp, fresh = packet[IP], packet[UDP], packet.copy()
        # scapy computes a checksum that is left out: the packet's own one is compared with it.
        del fresh[IP].chksum
        right = Ether(bytes(fresh))[IP].chksum
        for what, wanted, got in (
            ("IPv4 header length in words", 5, ip.ihl),
            ("IPv4 length", _RESULT_BYTES, ip.len),
            ('flag "more fragments"', 0, int(ip.flags.MF)),
            ("fragment offset", 0, ip.frag),
            ("time to live", 64, ip.ttl),
            ("UDP length", _RESULT_BYTES - 20, udp.len),
            ("UDP checksum (0: not computed)", 0, udp.chksum),
            ("IPv4 checksum", f"{right:#06x}", f"{ip.chksum:#06x}"),
        ):
            expect(got == wanted, f"{when}: at port {answer.port} the {what} must be {wanted}; it is {got}")


def ordinary_traffic(switch: Testbed) -> None:
    """Check that packets for other hosts pass unchanged in the middle of a round, and that others are dropped.

    UDP to port 5555 of another host passes too. Damaged packets, and those to unknown addresses, are dropped.
    """
    set_up(switch, 3)
    contributions = vectors(3)
    # In the middle of a round, which other traffic must neither begin anew nor carry on.
    expect_nothing(contribute(switch, 0, contributions[0]), "only 1 of 3 workers had contributed")
    to_a_neighbour = Ether(src=worker_mac(0), dst=worker_mac(1)) / IP(src=worker_ip(0), dst=worker_ip(1))
    traffic: tuple[Packet, ...] = (
        to_a_neighbour / TCP(sport=1000, dport=80) / Raw(b"hello"),
        to_a_neighbour / UDP(sport=1000, dport=53) / Raw(b"hello"),
        # The port alone does not make a contribution: the address has to be the switch's.
        to_a_neighbour / UDP(sport=5555, dport=AGGREGATION_PORT) / Aggregation(rank=0, values=[9] * VALUES),
        to_a_neighbour / UDP(sport=5555, dport=AGGREGATION_PORT) / Aggregation(kind=Kind.RESULT, values=[9] * VALUES),
        Ether(src=worker_mac(0), dst=worker_mac(2), type=0x86DD) / Raw(bytes(60)),
        Ether(src=worker_mac(0), dst=worker_mac(2)) / ARP(op=2, psrc=worker_ip(0), pdst=worker_ip(2)),
        Ether(src=worker_mac(0), dst=worker_mac(2)) / Dot1Q(vlan=7) / IP(dst=SWITCH_IP) / UDP(dport=AGGREGATION_PORT),
        to_a_neighbour / ICMP() / Raw(bytes(1400)),
        # A network card fills a short frame up to 60 bytes.
        Ether(pad_frame(bytes(to_a_neighbour / TCP(flags="A")))),
        *(_with(to_a_neighbour / TCP() / Raw(b"hello"), options=[IPOption_NOP()] * count) for count in (4, 40)),
        _with(to_a_neighbour / UDP(dport=AGGREGATION_PORT) / Aggregation(), options=[IPOption_NOP()] * 4),
        _with(to_a_neighbour / UDP(dport=AGGREGATION_PORT) / Raw(bytes(40)), frag=9),
        _with(to_a_neighbour / UDP(dport=AGGREGATION_PORT) / Aggregation(), src=SWITCH_IP, ttl=1, tos=0xB9, flags="DF"),
    )
    ports = {worker_mac(rank): worker_port(rank) for rank in range(3)}
    for packet in traffic:
        sent = switch.send(worker_port(0), bytes(packet))
        expect(
            sent == [Output(ports[packet.dst], bytes(packet))],
            f"this is for another host, and has to leave through port {ports[packet.dst]} unchanged: {summary(packet)}"
            f"; the switch sent {[(frame.port, differences(bytes(packet), frame.frame)) for frame in sent]}",
        )
    expect_nothing(contribute(switch, 1, contributions[1]), "only 2 of 3 workers had contributed")
    nobody = Ether(src=worker_mac(0), dst="02:00:00:00:00:77") / IP(src=worker_ip(0), dst="10.0.0.119") / UDP()
    damaged = to_a_neighbour.copy()
    damaged[IP].chksum = 1
    for why, packet in (
        ("no entry of `forward` has its Ethernet address", nobody),
        # The switch is told by its IPv4 address alone.
        ("no entry of `forward` has the switch's Ethernet address", udp_contribution(0, [9] * VALUES, ip=worker_ip(1))),
        ("its IPv4 checksum is wrong", damaged),
    ):
        expect_nothing(switch.send(worker_port(0), bytes(packet)), why)
    answers = contribute(switch, 2, contributions[2])
    expect_results(answers, range(3), total(contributions), "a round with ordinary traffic in its middle")


def _with(packet: Packet, **fields: Any) -> Packet:
    """Return the packet with other fields of IPv4."""
    for name, value in fields.items():
        packet[IP].setfieldval(name, value)
    return packet


def for_the_switch_only(switch: Testbed) -> None:
    """Check that packets for the switch that are damaged or no contributions do not count and are not answered."""
    set_up(switch, 2)
    contributions = vectors(2)
    contribute(switch, 0, contributions[0])
    for why, packet in _no_contributions(1):
        expect_nothing(switch.send(worker_port(1), bytes(packet)), why)
    answers = contribute(switch, 1, contributions[1])
    expect_results(answers, range(2), total(contributions), "a round beside damaged packets")


def _no_contributions(rank: int) -> Iterator[tuple[str, Packet]]:
    """Yield packets of a rank to the switch that are no contributions, each with the reason."""
    for kind in OTHER_KINDS:
        yield f"its kind is {kind}, not CONTRIBUTION", udp_contribution(rank, [7] * VALUES, kind=kind)
    # The switch is the packet's receiver, so it has to check what a host would check.
    for why, layer, fields in (
        ("its IPv4 checksum is wrong", IP, {"chksum": 1}),
        ("its UDP port is 5556", UDP, {"dport": AGGREGATION_PORT + 1}),
        ("its UDP length is 47 bytes", UDP, {"len": 47}),
        ("its UDP length is 56 bytes", UDP, {"len": 56}),
        ("it is no first fragment", IP, {"frag": 5}),
        ("its IP protocol is TCP", IP, {"proto": 6}),
        ("its IPv4 header has options", IP, {"options": [IPOption_NOP()] * 4}),
    ):
        packet = udp_contribution(rank, [7] * VALUES)
        # For the switch by its IPv4 address: it must not be forwarded either.
        packet.dst = worker_mac(0)
        for name, value in fields.items():
            packet[layer].setfieldval(name, value)
        yield why, packet
    yield "it ends amid its values", Raw(bytes(udp_contribution(rank, [7] * VALUES))[:60])
    # Once more for a program that takes the options for the UDP header: there they are its ports, the source port its
    # length, the length kind and rank, and the checksum slot and version.
    packet = udp_contribution(rank, [7] * VALUES)
    packet[UDP].sport, packet[UDP].len, packet[UDP].chksum = 48, Kind.CONTRIBUTION << 8 | rank, 0
    frame = bytes(packet)
    header = bytearray(frame[14:34] + b"\0\0" + AGGREGATION_PORT.to_bytes(2, "big"))
    header[0], header[3], header[10:12] = 0x46, header[3] + 4, b"\0\0"
    header[10:12] = checksum(bytes(header)).to_bytes(2, "big")
    yield "its IPv4 header has options", Raw(frame[:14] + bytes(header) + frame[34:])


CASES = (
    Case("sum_over_udp", "workers get the sum of their vectors, round after round (rule 2)", 3, sum_over_udp),
    Case("result_addresses", "each copy of a RESULT has its worker's addresses (rules 1, 2)", 3, result_addresses),
    Case("checksums", "a RESULT has right checksums and a fresh time to live (rule 2)", 2, checksums),
    Case("ordinary_traffic", "packets of others are forwarded unchanged (rule 3)", 2, ordinary_traffic),
    Case("for_the_switch_only", "only undamaged contributions count (rule 4)", 2, for_the_switch_only),
)
