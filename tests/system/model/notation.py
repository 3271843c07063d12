# SPDX-License-Identifier: Apache-2.0
"""Traces in the notation of docs/protocol.md.

    w0>U1       the switch receives UPDATE of round 1 from w0; U1! with FLUSH
    A>P1        in a tree: the spine s receives PARTIAL of round 1 from leaf A, which is above w0 and w1 (B: w2 and w3);
                P1{0} with these workers in it only
    R1>A        leaf A receives RESULT of round 1 from the spine
    R1>w0       w0 receives RESULT of round 1; R1{0,2} with contributors w0 and w2 only
    S1>w0       w0 receives STALE about round 1
    w1:1>w0     w0 fetches the result of round 1 from its peer w1
    [...]       an event: a crash, a restart, a step of a generation change
    | lost      everything in flight is lost; from here only fresh retransmissions, none of them lost

With several slots a packet's slot follows its round (U1.0). A packet of another generation than the first names
it (U1@2; generation 0 is an earlier job).
"""

from __future__ import annotations

from collections.abc import Iterable

from .state import Kind, Packet
from .world import Transition, World


def written(world: World, way: Iterable[Transition], *, lost: bool = False) -> str:
    """Return a trace in one line."""
    steps = [_step(world, transition) for transition in way]
    return " ".join([*steps, "| lost"] if lost else steps)


def _step(world: World, transition: Transition) -> str:
    label = transition.label
    if isinstance(label, str):
        return f"[{label}]"
    if len(label) == 3:
        chunk, source, target = label
        return f"w{source}:{_round_of(world, chunk)}>w{target}"
    number, receiver = label
    packet, config = world.packets[number], world.config
    flush = "!" if packet.flush else ""
    if packet.kind is Kind.UPDATE:
        return f"w{packet.worker}>{_named(world, packet)}{flush}"
    if packet.kind is Kind.PARTIAL:
        node = config.node_of(packet.worker)
        return f"{'sAB'[node]}>{_named(world, packet)}{flush}{_who(world, packet, config.children(node))}"
    who = _who(world, packet, tuple(range(config.n))) if packet.kind is Kind.RESULT else ""
    return f"{_named(world, packet)}{who}>{f'w{receiver}' if receiver >= 0 else 'sAB'[-1 - receiver]}"


def _who(world: World, packet: Packet, everybody: tuple[int, ...]) -> str:
    """Return the contributors of a sum in braces, if they are not all that they can be."""
    ranks = tuple(rank for rank in range(world.config.n) if packet.content.contributors >> rank & 1)
    return "" if ranks == everybody else "{" + ",".join(map(str, ranks)) + "}"


def _named(world: World, packet: Packet) -> str:
    slot = f".{packet.slot}" if world.config.slots > 1 else ""
    generation = f"@{packet.generation}" if packet.generation != 1 else ""
    return f"{packet.kind.value}{packet.round}{slot}{generation}"


def _round_of(world: World, chunk: int) -> str:
    """Return the round of a chunk in the first generation."""
    address = world.rules.addresses(world.controller.first_control().streams, 1)[chunk]
    return f"{address.round}.{address.slot}" if world.config.slots > 1 else str(address.round)
