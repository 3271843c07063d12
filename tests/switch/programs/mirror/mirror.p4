// SPDX-License-Identifier: Apache-2.0
// A tap: frames go from port 1 to 2 and back. A frame whose `sample` is not 0 is mirrored as it came (session 5), with
// a report in front of it that says where it came in and its tag; one whose `audit` is not 0 is mirrored as it leaves
// (session 6). `noise` is replaced by a random number of 10..17.
//
// Compiled with, in this folder:
//   p4c-bm2-ss --arch v1model --p4runtime-files mirror.p4info.txtpb -o mirror.json mirror.p4

#include <core.p4>
#include <v1model.p4>

const bit<32> SAMPLES = 5;
const bit<32> AUDITS = 6;
const bit<8> WITH_PORT = 1;

const bit<32> INGRESS_CLONE = 1;
const bit<32> EGRESS_CLONE = 2;

header report_t {
    bit<8>  kind;
    bit<8>  instance;
    bit<16> port;
    bit<16> tag;
}

header item_t {
    bit<8>  sample;
    bit<8>  audit;
    bit<8>  noise;
    bit<8>  hops;
    bit<16> tag;
}

struct headers_t {
    report_t report;
    item_t   item;
}

struct metadata_t {
    @field_list(WITH_PORT)
    bit<16> came_in;
    @field_list(WITH_PORT)
    bit<16> tag;
    bit<16> forgotten;
}

parser MirrorParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.item);
        transition accept;
    }
}

control MirrorVerify(inout headers_t h, inout metadata_t m) { apply { } }

control MirrorIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        if (!h.item.isValid()) {
            mark_to_drop(s);
        } else {
            m.came_in = (bit<16>) s.ingress_port;
            m.tag = h.item.tag + 1;
            m.forgotten = 0xFFFF;
            if (h.item.sample != 0) {
                clone_preserving_field_list(CloneType.I2E, SAMPLES, WITH_PORT);
            }
            random(h.item.noise, 10, 17);
            h.item.hops = h.item.hops + 1;
            s.egress_spec = s.ingress_port ^ 3;
        }
    }
}

control MirrorEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        if (s.instance_type == INGRESS_CLONE || s.instance_type == EGRESS_CLONE) {
            h.report.setValid();
            h.report.kind = (bit<8>) s.egress_rid;
            h.report.instance = (bit<8>) s.instance_type;
            h.report.port = m.came_in;
            h.report.tag = m.tag + m.forgotten;
        } else {
            h.item.hops = h.item.hops + 1;
            m.tag = m.tag + 1;
            if (h.item.audit != 0) {
                clone_preserving_field_list(CloneType.E2E, AUDITS, WITH_PORT);
            }
        }
    }
}

control MirrorUpdate(inout headers_t h, inout metadata_t m) { apply { } }

control MirrorDeparser(packet_out packet, in headers_t h) {
    apply {
        packet.emit(h.report);
        packet.emit(h.item);
    }
}

V1Switch(MirrorParser(), MirrorVerify(), MirrorIngress(), MirrorEgress(), MirrorUpdate(), MirrorDeparser()) main;
