// SPDX-License-Identifier: Apache-2.0
// Answers every IPv4/UDP frame to its sender, at the port it came from or at a group of ports, and numbers the answers
// in the IPv4 identification. Everything else is dropped.
//
// Compiled with, in this folder:
//   p4c-bm2-ss --p4v 16 --p4runtime-files echo.p4info.txtpb -o echo.json echo.p4

#include <core.p4>
#include <v1model.p4>

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

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t     ipv4;
    udp_t      udp;
}

struct metadata_t { }

parser EchoParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.ethernet);
        transition select(h.ethernet.kind) {
            0x0800: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(h.ipv4);
        transition select(h.ipv4.version_ihl, h.ipv4.protocol) {
            (0x45, 17): udp;
            default: accept;
        }
    }
    state udp {
        packet.extract(h.udp);
        transition accept;
    }
}

control EchoVerify(inout headers_t h, inout metadata_t m) { apply { } }

control EchoIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<16>>(1) answers;

    action answer() { s.egress_spec = s.ingress_port; }
    action answer_all(bit<16> group) { s.mcast_grp = group; }

    table ports {
        key = { s.ingress_port: exact; }
        actions = { answer; answer_all; }
        default_action = answer();
    }

    apply {
        if (h.udp.isValid()) {
            bit<48> mac = h.ethernet.dst;
            h.ethernet.dst = h.ethernet.src;
            h.ethernet.src = mac;
            bit<32> address = h.ipv4.dst;
            h.ipv4.dst = h.ipv4.src;
            h.ipv4.src = address;
            bit<16> port = h.udp.dst_port;
            h.udp.dst_port = h.udp.src_port;
            h.udp.src_port = port;
            answers.read(h.ipv4.identification, 0);
            h.ipv4.identification = h.ipv4.identification + 1;
            answers.write(0, h.ipv4.identification);
            ports.apply();
        } else {
            mark_to_drop(s);
        }
    }
}

control EchoEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }

control EchoUpdate(inout headers_t h, inout metadata_t m) {
    apply {
        update_checksum(h.ipv4.isValid(),
            { h.ipv4.version_ihl, h.ipv4.tos, h.ipv4.total_length, h.ipv4.identification, h.ipv4.fragment,
              h.ipv4.ttl, h.ipv4.protocol, h.ipv4.src, h.ipv4.dst },
            h.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control EchoDeparser(packet_out packet, in headers_t h) {
    apply {
        packet.emit(h.ethernet);
        packet.emit(h.ipv4);
        packet.emit(h.udp);
    }
}

V1Switch(EchoParser(), EchoVerify(), EchoIngress(), EchoEgress(), EchoUpdate(), EchoDeparser()) main;
