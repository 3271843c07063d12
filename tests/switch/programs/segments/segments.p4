// SPDX-License-Identifier: Apache-2.0
// Source routing with a trace: the frame starts with a list of segments, each of which names the next port. The switch
// sends the frame to the first one, drops that from the list, and pushes a record onto the trace that follows. The
// payload's kind stands behind the trace: a union of two headers, of which `long_t` becomes a `short_t`.
//
// Compiled with, in this folder:
//   p4c-bm2-ss --arch v1model --p4runtime-files segments.p4info.txtpb -o segments.json segments.p4

#include <core.p4>
#include <v1model.p4>

const bit<8> SHORT = 1;
const bit<8> LONG = 2;

header start_t {
    bit<8> records;
}

header segment_t {
    bit<1> last;
    bit<7> port;
}

header record_t {
    bit<8> port;
    bit<8> left;
}

header short_t {
    bit<8> kind;
    bit<8> value;
}

header long_t {
    bit<8>  kind;
    bit<24> value;
}

header_union body_t {
    short_t brief;
    long_t  full;
}

struct headers_t {
    start_t      start;
    segment_t[4] segments;
    record_t[3]  records;
    body_t       body;
}

struct metadata_t {
    bit<8> left;
}

parser SegmentsParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.start);
        m.left = h.start.records;
        transition segment;
    }
    state segment {
        packet.extract(h.segments.next);
        transition select(h.segments.last.last) {
            0: segment;
            default: records;
        }
    }
    state records {
        transition select(m.left) {
            0: body;
            default: record;
        }
    }
    state record {
        packet.extract(h.records.next);
        m.left = m.left - 1;
        transition records;
    }
    state body {
        transition select(packet.lookahead<bit<8>>()) {
            SHORT: brief;
            LONG: full;
            default: accept;
        }
    }
    state brief {
        packet.extract(h.body.brief);
        transition accept;
    }
    state full {
        packet.extract(h.body.full);
        transition accept;
    }
}

control SegmentsVerify(inout headers_t h, inout metadata_t m) { apply { } }

control SegmentsIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        if (s.parser_error != error.NoError || !h.segments[0].isValid()) {
            mark_to_drop(s);
        } else {
            s.egress_spec = (bit<9>) h.segments[0].port;
            h.segments.pop_front(1);
        }
    }
}

control SegmentsEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        bit<8> left = 0;
        if (h.segments[0].isValid()) { left = left + 1; }
        if (h.segments[1].isValid()) { left = left + 1; }
        if (h.segments[2].isValid()) { left = left + 1; }
        if (!h.records[2].isValid()) {
            h.start.records = h.start.records + 1;
        }
        h.records.push_front(1);
        h.records[0].setValid();
        h.records[0].port = (bit<8>) s.egress_port;
        h.records[0].left = left;
        if (h.body.full.isValid()) {
            bit<8> value = h.body.full.value[7:0];
            h.body.brief.setValid();
            h.body.brief.kind = SHORT;
            h.body.brief.value = value;
        }
    }
}

control SegmentsUpdate(inout headers_t h, inout metadata_t m) { apply { } }

control SegmentsDeparser(packet_out packet, in headers_t h) {
    apply {
        packet.emit(h.start);
        packet.emit(h.segments);
        packet.emit(h.records);
        packet.emit(h.body);
    }
}

V1Switch(SegmentsParser(), SegmentsVerify(), SegmentsIngress(), SegmentsEgress(), SegmentsUpdate(),
         SegmentsDeparser()) main;
