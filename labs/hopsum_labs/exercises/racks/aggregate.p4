// SPDX-License-Identifier: Apache-2.0
// Bonus: one program for the switches of two racks and for the spine between them.
#include <core.p4>
#include <v1model.p4>

const bit<16> TYPE_AGGREGATION = 0x88B5;  // IEEE 802: for local experiments
const bit<8>  CONTRIBUTION = 1;           // from a worker, or from a rack to the spine: values
const bit<8>  RESULT = 2;                 // from the spine: the sums of all workers
const bit<16> BELOW = 1;                  // multicast group: the workers of a rack, or the racks of the spine
const bit<48> SWITCH_MAC = 0x0200000000FE;
const bit<48> BROADCAST = 0xFFFFFFFFFFFF;

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> type;
}

// What workers and switches say to each other: 8 bytes, then 8 values of 32 bits.
header aggregation_t {
    bit<8>  kind;     // CONTRIBUTION or RESULT
    bit<8>  rank;     // of the worker, from 0; from a rack to the spine: the rack, from 0
    bit<8>  slot;     // 0 in this level
    bit<8>  version;  // 0 in this level
    bit<32> chunk;    // which chunk of the vector this is; the switch only carries it through
}

header values_t {
    bit<32> v0;
    bit<32> v1;
    bit<32> v2;
    bit<32> v3;
    bit<32> v4;
    bit<32> v5;
    bit<32> v6;
    bit<32> v7;
}

struct headers_t {
    ethernet_t    ethernet;
    aggregation_t aggregation;
    values_t      values;
}

struct metadata_t {
    bit<8> below;    // how many contributions make a sum: workers of a rack, or racks; from table `job`
    bit<1> is_leaf;  // this is the switch of a rack
    bit<9> uplink;   // its port to the spine
    bit<8> rack;     // its number, from 0
}

parser MyParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_AGGREGATION: aggregation;
            default: accept;
        }
    }

    state aggregation {
        packet.extract(hdr.aggregation);
        packet.extract(hdr.values);
        transition accept;
    }
}

control MyVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control MyIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(8) sums;   // one cell for each value
    register<bit<8>>(1) arrived; // contributions in `sums`

    // The control plane sets the default action: what this switch is.
    action set_spine(bit<8> racks) {
        meta.below = racks;
        meta.is_leaf = 0;
    }

    action set_leaf(bit<8> workers, bit<9> uplink, bit<8> rack) {
        meta.below = workers;
        meta.is_leaf = 1;
        meta.uplink = uplink;
        meta.rack = rack;
    }

    table job {
        actions = { set_spine; set_leaf; NoAction; }
        default_action = NoAction();
    }

    // The first contribution of a round replaces what the round before left; the others are added.
    action aggregate(in bit<32> cell, in bool is_first, inout bit<32> value) {
        bit<32> sum;
        sums.read(sum, cell);
        value = is_first ? value : sum + value;
        sums.write(cell, value);
    }

    action answer_all() {
        hdr.ethernet.destination = BROADCAST;
        hdr.ethernet.source = SWITCH_MAC;
        hdr.aggregation.kind = RESULT;
        standard.mcast_grp = BELOW;
    }

    action send_up() {
        // GAP 1: the sum of a rack goes to the spine as a CONTRIBUTION: the rack's number as rank, SWITCH_MAC as source,
        //        out of the uplink.
    }

    apply {
        if (!hdr.values.isValid()) {
            mark_to_drop(standard);
            return;
        }
        job.apply();
        // GAP 2: at a leaf, a RESULT from the uplink goes to the workers below as it is. Whatever else comes from the uplink
        //        is dropped, and so is a RESULT from below, and a RESULT at the spine.
        if (hdr.aggregation.kind != CONTRIBUTION) {
            mark_to_drop(standard);
            return;
        }
        bit<8> count;
        arrived.read(count, 0);
        bool is_first = count == 0;
        aggregate(0, is_first, hdr.values.v0);
        aggregate(1, is_first, hdr.values.v1);
        aggregate(2, is_first, hdr.values.v2);
        aggregate(3, is_first, hdr.values.v3);
        aggregate(4, is_first, hdr.values.v4);
        aggregate(5, is_first, hdr.values.v5);
        aggregate(6, is_first, hdr.values.v6);
        aggregate(7, is_first, hdr.values.v7);
        count = count + 1;
        if (count == meta.below) {
            count = 0;
            // GAP 3: at the spine the RESULT goes to all racks; a leaf sends its sum up instead.
            answer_all();
        } else {
            mark_to_drop(standard);
        }
        arrived.write(0, count);
    }
}

control MyEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}

control MyComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control MyDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.aggregation);
        packet.emit(hdr.values);
    }
}

V1Switch(MyParser(), MyVerifyChecksum(), MyIngress(), MyEgress(), MyComputeChecksum(), MyDeparser()) main;
