// SPDX-License-Identifier: Apache-2.0
// A small program with one of everything that the P4Runtime server serves: each match kind, entries and default
// entries constant and not, direct and indexed counters, a register, multicast, packet-in and packet-out.
//
// Compiled with, in this folder:
//   p4c-bm2-ss --p4v 16 --p4runtime-files station.p4info.txtpb -o station.json station.p4

#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> kind;
}

header ipv4_t {
    bit<8>  version_ihl;
    bit<8>  tos;
    bit<16> total_length;
    bit<16> identification;
    bit<16> fragment;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> unused;
}

struct headers_t {
    packet_out_t packet_out;
    packet_in_t  packet_in;
    ethernet_t   ethernet;
    ipv4_t       ipv4;
}

struct metadata_t { }

parser StationParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        transition select(s.ingress_port) {
            CPU_PORT: from_controller;
            default: ethernet;
        }
    }
    state from_controller {
        packet.extract(h.packet_out);
        transition ethernet;
    }
    state ethernet {
        packet.extract(h.ethernet);
        transition select(h.ethernet.kind) {
            0x0800: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(h.ipv4);
        transition accept;
    }
}

control StationVerify(inout headers_t h, inout metadata_t m) { apply { } }

control StationIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    direct_counter(CounterType.packets_and_bytes) forwarded;
    counter(512, CounterType.packets_and_bytes) received;
    register<bit<48>>(16) last_source;

    action drop() { mark_to_drop(s); }
    action forward(bit<9> port) { s.egress_spec = port; }
    action flood(bit<16> group) { s.mcast_grp = group; }
    action mark(bit<8> tos) { h.ipv4.tos = tos; }
    action to_controller(bit<7> reason) {
        h.packet_in.setValid();
        h.packet_in.ingress_port = s.ingress_port;
        h.packet_in.reason = reason;
        s.egress_spec = CPU_PORT;
    }

    table l2 {
        key = { h.ethernet.dst: exact; }
        actions = { forward; flood; to_controller; @defaultonly drop; }
        default_action = drop();
        counters = forwarded;
        size = 64;
    }

    table routes {
        key = { h.ipv4.dst: lpm; }
        actions = { forward; NoAction; }
        default_action = NoAction();
        size = 4;
    }

    table classes {
        key = {
            h.ipv4.src: ternary;
            h.ipv4.ttl: range;
            h.ipv4.protocol: optional;
        }
        actions = { mark; NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    table kinds {
        key = { h.ethernet.kind: exact; }
        actions = { to_controller; NoAction; }
        const entries = {
            0x88CC: to_controller(1);
            0x0806: to_controller(2);
        }
        default_action = NoAction();
    }

    apply {
        received.count((bit<32>) s.ingress_port);
        if (h.packet_out.isValid()) {
            s.egress_spec = h.packet_out.egress_port;
            h.packet_out.setInvalid();
        } else {
            last_source.write((bit<32>) s.ingress_port & 15, h.ethernet.src);
            if (!kinds.apply().hit) {
                l2.apply();
                if (h.ipv4.isValid()) {
                    routes.apply();
                    classes.apply();
                }
            }
        }
    }
}

control StationEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply { }
}

control StationUpdate(inout headers_t h, inout metadata_t m) { apply { } }

control StationDeparser(packet_out packet, in headers_t h) {
    apply {
        packet.emit(h.packet_in);
        packet.emit(h.ethernet);
        packet.emit(h.ipv4);
    }
}

V1Switch(StationParser(), StationVerify(), StationIngress(), StationEgress(), StationUpdate(), StationDeparser()) main;
