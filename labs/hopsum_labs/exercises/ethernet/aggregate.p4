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
        // GAP 1: when the frame's type is TYPE_AGGREGATION, extract hdr.aggregation and hdr.values.
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

    apply {
        // GAP 2: drop what is no contribution: mark_to_drop(standard).
        job.apply();
        // GAP 3: add hdr.values to `sums`, cell by cell. The first contribution of a round starts from zero.
        // GAP 4: count it. The last contribution of a round becomes the RESULT: kind RESULT, the sums as values,
        //        source SWITCH_MAC, destination BROADCAST, and standard.mcast_grp = ALL_WORKERS. Others are dropped.
        mark_to_drop(standard);
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
