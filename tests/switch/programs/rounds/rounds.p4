// SPDX-License-Identifier: Apache-2.0
// Packets that come round. Ingress resubmits a frame `resubmits` times, egress recirculates it `recirculations` times
// and appends a mark each time; metadata that is preserved counts. What is lost on the way is reported in the frame:
// the ingress port and the kind of packet that ingress saw last.
//
// Compiled with, in this folder:
//   p4c-bm2-ss --arch v1model --p4runtime-files rounds.p4info.txtpb -o rounds.json rounds.p4

#include <core.p4>
#include <v1model.p4>

const bit<8> KEPT = 1;

header head_t {
    bit<8>  resubmits;
    bit<8>  recirculations;
    bit<8>  port;
    bit<8>  kind;
    bit<16> length;
    bit<8>  seen;
    bit<8>  lost;
}

header mark_t {
    bit<8> more;
    bit<8> number;
}

struct headers_t {
    head_t    head;
    mark_t[8] marks;
}

struct metadata_t {
    @field_list(KEPT)
    bit<8> resubmitted;
    @field_list(KEPT)
    bit<8> recirculated;
    bit<8> lost;
}

parser RoundsParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.head);
        transition marks;
    }
    state marks {
        packet.extract(h.marks.next);
        transition select(h.marks.last.more) {
            0: accept;
            default: marks;
        }
    }
}

control RoundsVerify(inout headers_t h, inout metadata_t m) { apply { } }

control RoundsIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        s.egress_spec = 2;
        if (!h.marks[0].isValid()) {
            mark_to_drop(s);
        } else if (m.resubmitted < h.head.resubmits) {
            m.resubmitted = m.resubmitted + 1;
            m.lost = 0x55;
            h.head.seen = 0xEE;
            resubmit_preserving_field_list(KEPT);
        } else {
            h.head.seen = m.resubmitted;
            h.head.port = (bit<8>) s.ingress_port;
            h.head.kind = (bit<8>) s.instance_type;
            h.head.length = (bit<16>) s.packet_length;
            h.head.lost = m.lost;
        }
    }
}

control RoundsEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        if (m.recirculated < h.head.recirculations) {
            m.recirculated = m.recirculated + 1;
            m.lost = 0x66;
            h.marks.push_front(1);
            h.marks[0].setValid();
            h.marks[0].more = 1;
            h.marks[0].number = m.recirculated;
            recirculate_preserving_field_list(KEPT);
        }
    }
}

control RoundsUpdate(inout headers_t h, inout metadata_t m) { apply { } }

control RoundsDeparser(packet_out packet, in headers_t h) {
    apply {
        packet.emit(h.head);
        packet.emit(h.marks);
    }
}

V1Switch(RoundsParser(), RoundsVerify(), RoundsIngress(), RoundsEgress(), RoundsUpdate(), RoundsDeparser()) main;
