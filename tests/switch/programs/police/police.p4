// SPDX-License-Identifier: Apache-2.0
// Policing: the frame's class selects a meter of packets, its flow an entry with a meter of bytes. Both colours are
// written into the frame; what the flow's meter calls red is dropped, and the drop is written to the log.
//
// Compiled with, in this folder:
//   p4c-bm2-ss --arch v1model --p4runtime-files police.p4info.txtpb -o police.json police.p4

#include <core.p4>
#include <v1model.p4>

const bit<8> RED = 2;

header item_t {
    bit<8>  class;
    bit<8>  class_colour;
    bit<16> flow;
    bit<8>  flow_colour;
}

struct headers_t {
    item_t item;
}

struct metadata_t {
    bit<8> colour;
}

parser PoliceParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.item);
        transition accept;
    }
}

control PoliceVerify(inout headers_t h, inout metadata_t m) { apply { } }

control PoliceIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    meter(8, MeterType.packets) classes;
    direct_meter<bit<8>>(MeterType.bytes) rates;

    action forward(bit<9> port) {
        s.egress_spec = port;
        rates.read(m.colour);
    }
    action drop() {
        mark_to_drop(s);
        rates.read(m.colour);
    }

    table flows {
        key = { h.item.flow: exact; }
        actions = { forward; drop; @defaultonly NoAction; }
        default_action = NoAction();
        meters = rates;
        size = 64;
    }

    apply {
        if (!h.item.isValid()) {
            mark_to_drop(s);
        } else {
            m.colour = 9;
            classes.execute_meter((bit<32>) h.item.class, h.item.class_colour);
            flows.apply();
            h.item.flow_colour = m.colour;
            if (m.colour == RED) {
                log_msg("flow {} is red", { h.item.flow });
                mark_to_drop(s);
            }
        }
    }
}

control PoliceEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }

control PoliceUpdate(inout headers_t h, inout metadata_t m) { apply { } }

control PoliceDeparser(packet_out packet, in headers_t h) {
    apply {
        packet.emit(h.item);
    }
}

V1Switch(PoliceParser(), PoliceVerify(), PoliceIngress(), PoliceEgress(), PoliceUpdate(), PoliceDeparser()) main;
