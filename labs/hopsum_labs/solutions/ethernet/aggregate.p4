// SPDX-License-Identifier: Apache-2.0
// Level 1: a switch that adds vectors, over Ethernet.
#include <core.p4>
#include <v1model.p4>

const bit<16> TYPE_AGGREGATION = 0x88B5;  // IEEE 802: for local experiments
const bit<8>  CONTRIBUTION = 1;           // from a worker: its values
const bit<8>  RESULT = 2;                 // from the switch: the sums
const bit<16> ALL_WORKERS = 1;            // multicast group: every worker's port
const bit<48> SWITCH_MAC = 0x0200000000FE;
const bit<48> BROADCAST = 0xFFFFFFFFFFFF;

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> type;
}

// What a worker and the switch say to each other: 8 bytes, then 8 values of 32 bits.
header aggregation_t {
    bit<8>  kind;     // CONTRIBUTION or RESULT
    bit<8>  rank;     // of the worker that sent the contribution, from 0
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
    bit<8> workers;  // how many workers the job has, from table `job`
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

    // The control plane sets the default action: how many workers there are.
    action set_job(bit<8> workers) {
        meta.workers = workers;
    }

    table job {
        actions = { set_job; NoAction; }
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
        standard.mcast_grp = ALL_WORKERS;
    }

    apply {
        if (!hdr.values.isValid() || hdr.aggregation.kind != CONTRIBUTION) {
            mark_to_drop(standard);
            return;
        }
        job.apply();
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
        packet.emit(hdr.values);
    }
}

V1Switch(MyParser(), MyVerifyChecksum(), MyIngress(), MyEgress(), MyComputeChecksum(), MyDeparser()) main;
