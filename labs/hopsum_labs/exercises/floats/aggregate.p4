// SPDX-License-Identifier: Apache-2.0
// Bonus: a switch that adds quantised floats, over Ethernet: 4 bits a value up, a lookup table, 16 bits down.
#include <core.p4>
#include <v1model.p4>

const bit<16> TYPE_QUANTISED = 0x88B6;    // IEEE 802: for local experiments
const bit<8>  CONTRIBUTION = 1;           // from a worker: its codes
const bit<8>  RESULT = 2;                 // from the switch: the sums
const bit<16> ALL_WORKERS = 1;            // multicast group: every worker's port
const bit<48> SWITCH_MAC = 0x0200000000FE;
const bit<48> BROADCAST = 0xFFFFFFFFFFFF;

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> type;
}

// What a worker and the switch say to each other: 8 bytes, then the codes of a worker or the sums of the switch.
header aggregation_t {
    bit<8>  kind;     // CONTRIBUTION or RESULT
    bit<8>  rank;     // of the worker that sent the contribution, from 0
    bit<8>  slot;     // 0 in this level
    bit<8>  version;  // 0 in this level
    bit<32> chunk;    // which chunk of the vector this is; the switch only carries it through
}

// A code says where in the table a value stands.
header codes_t {
    bit<4> c0;
    bit<4> c1;
    bit<4> c2;
    bit<4> c3;
    bit<4> c4;
    bit<4> c5;
    bit<4> c6;
    bit<4> c7;
}

header sums_t {
    bit<16> s0;
    bit<16> s1;
    bit<16> s2;
    bit<16> s3;
    bit<16> s4;
    bit<16> s5;
    bit<16> s6;
    bit<16> s7;
}

struct headers_t {
    ethernet_t    ethernet;
    aggregation_t aggregation;
    codes_t       codes;
    sums_t        sums;
}

struct metadata_t {
    bit<8> workers;  // how many workers the job has, from table `job`
}

parser MyParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_QUANTISED: aggregation;
            default: accept;
        }
    }

    state aggregation {
        packet.extract(hdr.aggregation);
        // GAP 1: codes follow where this is a CONTRIBUTION, and nowhere else.
        transition accept;
    }
}

control MyVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

// One look at the table. A table can be asked once a packet, so a packet with eight codes needs eight of them.
control Lookup(in bit<4> code, out bit<16> value) {
    action set_value(bit<8> number) {
        value = (bit<16>)number;
    }

    // GAP 2: table `values`, with the code as its exact key, and set_value. Apply it. A code without an entry counts 0.

    apply {
        value = 0;
    }
}

control MyIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<16>>(8) sums;   // one cell for each value
    register<bit<8>>(1) arrived; // contributions in `sums`
    Lookup() lookup0;
    Lookup() lookup1;
    Lookup() lookup2;
    Lookup() lookup3;
    Lookup() lookup4;
    Lookup() lookup5;
    Lookup() lookup6;
    Lookup() lookup7;

    // The control plane sets the default action: how many workers there are.
    action set_job(bit<8> workers) {
        meta.workers = workers;
    }

    table job {
        actions = { set_job; NoAction; }
        default_action = NoAction();
    }

    // The first contribution of a round replaces what the round before left; the others are added.
    action aggregate(in bit<32> cell, in bool is_first, inout bit<16> value) {
        bit<16> sum;
        sums.read(sum, cell);
        value = is_first ? value : sum + value;
        sums.write(cell, value);
    }

    action answer_all() {
        hdr.ethernet.destination = BROADCAST;
        hdr.ethernet.source = SWITCH_MAC;
        hdr.aggregation.kind = RESULT;
        // GAP 4: which headers does a RESULT have?
        standard.mcast_grp = ALL_WORKERS;
    }

    apply {
        if (!hdr.codes.isValid()) {
            mark_to_drop(standard);
            return;
        }
        job.apply();
        // GAP 3: look all eight codes up, add the values in `sums` as in level 1, and put the sums into hdr.sums.
        bit<8> count;
        arrived.read(count, 0);
        count = count + 1;
        if (count == meta.workers) {
            count = 0;
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
        packet.emit(hdr.codes);
        packet.emit(hdr.sums);
    }
}

V1Switch(MyParser(), MyVerifyChecksum(), MyIngress(), MyEgress(), MyComputeChecksum(), MyDeparser()) main;
