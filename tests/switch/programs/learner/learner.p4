// SPDX-License-Identifier: Apache-2.0
// A bridge whose controller learns: a source address that is not known at its port is told in a digest, with the port.
// The controller writes `sources` and `destinations`; frames to unknown addresses are flooded (multicast group 1),
// those to address 0 are dropped. A frame of kind 0x88b5 is told in a digest of its own in place of that one, with the
// number of its bytes and a number that ingress changes after the call.
//
// Compiled with, in this folder:
//   p4c-bm2-ss --arch v1model --p4runtime-files learner.p4info.txtpb -o learner.json learner.p4

#include <core.p4>
#include <v1model.p4>

const bit<16> KIND_PROBE = 0x88b5;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> kind;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t {
    bit<12> number;
}

struct learned_t {
    bit<48> address;
    bit<9>  port;
}

struct probed_t {
    bit<32> bytes;
    bit<12> number;
}

parser LearnerParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.ethernet);
        transition accept;
    }
}

control LearnerVerify(inout headers_t h, inout metadata_t m) { apply { } }

control LearnerIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action learn() {
        digest<learned_t>(1, { h.ethernet.src, s.ingress_port });
    }

    action forward(bit<9> port) {
        s.egress_spec = port;
    }

    action flood() {
        s.mcast_grp = 1;
    }

    action drop() {
        mark_to_drop(s);
    }

    table sources {
        key = {
            h.ethernet.src: exact;
            s.ingress_port: exact;
        }
        actions = { NoAction; learn; }
        default_action = learn;
        size = 64;
    }

    table destinations {
        key = { h.ethernet.dst: exact; }
        actions = { forward; flood; drop; }
        default_action = flood;
        size = 64;
    }

    apply {
        if (!h.ethernet.isValid()) {
            drop();
        } else {
            sources.apply();
            destinations.apply();
            if (h.ethernet.dst == 0) {
                drop();
            }
            if (h.ethernet.kind == KIND_PROBE) {
                m.number = h.ethernet.dst[11:0];
                digest<probed_t>(1, { s.packet_length, m.number });
                m.number = m.number + 1;
            }
        }
    }
}

control LearnerEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }

control LearnerUpdate(inout headers_t h, inout metadata_t m) { apply { } }

control LearnerDeparser(packet_out packet, in headers_t h) {
    apply { packet.emit(h.ethernet); }
}

V1Switch(LearnerParser(), LearnerVerify(), LearnerIngress(), LearnerEgress(), LearnerUpdate(), LearnerDeparser()) main;
