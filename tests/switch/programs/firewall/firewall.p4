// SPDX-License-Identifier: Apache-2.0
// A two-port firewall for TCP and UDP over IPv4: ternary rules with priorities and port ranges, counted per
// rule; verdicts counted by index; protocols allowed by constant entries; a flood group for broadcasts.

#include <core.p4>
#include <v1model.p4>

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<32> VERDICT_ALLOWED = 0;
const bit<32> VERDICT_DENIED  = 1;
const bit<32> VERDICT_IGNORED = 2;

header ethernet_h {
    bit<48> dst;
    bit<48> src;
    bit<16> ethertype;
}

header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_length;
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header ports_h {
    bit<16> src;
    bit<16> dst;
}

struct headers_t {
    ethernet_h ethernet;
    ipv4_h     ipv4;
    ports_h    ports;
}

struct metadata_t {
    bit<1> inspected;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (0, 6):  parse_ports;
            (0, 17): parse_ports;
            default: accept;
        }
    }
    state parse_ports {
        packet.extract(hdr.ports);
        transition accept;
    }
}

control NoChecks(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(3, CounterType.packets_and_bytes) verdicts;
    direct_counter(CounterType.packets_and_bytes) rule_hits;

    action allow(bit<9> port) {
        std.egress_spec = port;
        verdicts.count(VERDICT_ALLOWED);
        rule_hits.count();
    }
    action deny() {
        mark_to_drop(std);
        verdicts.count(VERDICT_DENIED);
        rule_hits.count();
    }
    action ignore() {
        mark_to_drop(std);
        verdicts.count(VERDICT_IGNORED);
    }
    action flood(bit<16> group) {
        std.mcast_grp = group;
    }
    action inspect() {
        meta.inspected = 1;
    }

    table broadcast {
        key = { hdr.ethernet.dst: exact; }
        actions = { flood; NoAction; }
        const default_action = NoAction();
        size = 4;
    }
    table protocols {
        key = { hdr.ipv4.isValid(): exact; hdr.ipv4.protocol: ternary; }
        actions = { inspect; NoAction; }
        const default_action = NoAction();
        const entries = {
            (true, 6): inspect();
            (true, 17): inspect();
            (true, 0x80 &&& 0x80): NoAction();
        }
    }
    table rules {
        key = {
            hdr.ipv4.src:  ternary;
            hdr.ipv4.dst:  ternary;
            hdr.ports.dst: range;
            hdr.ipv4.protocol: optional;
        }
        actions = { allow; deny; }
        default_action = deny();
        counters = rule_hits;
        size = 8;
    }

    apply {
        switch (broadcast.apply().action_run) {
            flood: { }
            default: {
                protocols.apply();
                if (meta.inspected == 1 && hdr.ports.isValid()) {
                    rules.apply();
                } else {
                    ignore();
                }
            }
        }
    }
}

control Emit(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        // A flooded frame does not go back to where it came from, and carries its copy's number.
        if (std.instance_type == 5) {
            if (std.egress_port == std.ingress_port) {
                mark_to_drop(std);
            } else {
                hdr.ethernet.src[15:0] = std.egress_rid;
            }
        }
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ports);
    }
}

V1Switch(Parse(), NoChecks(), Forward(), Emit(), NoChecks(), Deparse()) main;
