// SPDX-License-Identifier: Apache-2.0
// Port knocking with a limit. A flow (hash of a source) must knock on three ports in order; then it may pass
// `LIMIT` frames. Each frame is answered to its sender with a report header that says where the flow stands.

#include <core.p4>
#include <v1model.p4>

const bit<32> FLOWS = 256;
const bit<8>  OPEN  = 3;
const bit<16> LIMIT = 4;

header knock_h {
    bit<32> source;
    bit<16> port;
    int<16> balance;            // signed: the sender's own account, charged 100 a frame
}

header report_h {
    bit<8>  stage;
    bit<16> passed;
    bit<48> stamp;
    bit<8>  lookahead;          // first byte after the knock, 0xEE if there is none
}

struct headers_t {
    report_h report;
    knock_h  knock;
}

struct metadata_t {
    bit<32> flow;
    bit<8>  stage;
    bit<16> passed;
    bit<8>  next_byte;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        meta.next_byte = 0xEE;
        packet.extract(hdr.knock);
        transition select(std.packet_length) {
            8: accept;
            default: peek;
        }
    }
    state peek {
        meta.next_byte = packet.lookahead<bit<8>>();
        transition accept;
    }
}

control NoChecks(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    register<bit<8>>(FLOWS)  stages;
    register<bit<16>>(FLOWS) passed;

    action knock() {
        // one action with branches: the compiler emits jumps
        if (meta.stage == 0 && hdr.knock.port == 7000) {
            meta.stage = 1;
        } else if (meta.stage == 1 && hdr.knock.port == 8000) {
            meta.stage = 2;
        } else if (meta.stage == 2 && hdr.knock.port == 9000) {
            meta.stage = OPEN;
        } else if (meta.stage != OPEN) {
            meta.stage = 0;
        }
    }

    apply {
        if (std.parser_error != error.NoError) {
            mark_to_drop(std);
            exit;
        }
        hash(meta.flow, HashAlgorithm.crc16, 32w0, { hdr.knock.source }, FLOWS);
        stages.read(meta.stage, meta.flow);
        passed.read(meta.passed, meta.flow);
        if (meta.stage == OPEN) {
            meta.passed = meta.passed |+| 1;
            if (meta.passed > LIMIT) {
                meta.stage = 0;
                meta.passed = 0;
            }
        } else {
            knock();
        }
        stages.write(meta.flow, meta.stage);
        passed.write(meta.flow, meta.passed);
        hdr.knock.balance = hdr.knock.balance |-| 100;
        std.egress_spec = std.ingress_port;
    }
}

control Emit(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        hdr.report.setValid();
        hdr.report.stage = meta.stage;
        hdr.report.passed = meta.passed;
        hdr.report.stamp = std.ingress_global_timestamp;
        hdr.report.lookahead = meta.next_byte;
        truncate(32w20);
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.report);
        packet.emit(hdr.knock);
    }
}

V1Switch(Parse(), NoChecks(), Forward(), Emit(), NoChecks(), Deparse()) main;
