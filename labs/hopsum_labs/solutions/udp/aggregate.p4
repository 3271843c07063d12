// SPDX-License-Identifier: Apache-2.0
// Level 2: a switch that adds vectors, over UDP, and forwards all other traffic.
#include <core.p4>
#include <v1model.p4>

const bit<16> TYPE_IPV4 = 0x0800;
const bit<8>  PROTOCOL_UDP = 17;
const bit<16> AGGREGATION_PORT = 5555;  // UDP, at the switch and at the workers
const bit<8>  CONTRIBUTION = 1;         // from a worker: its values
const bit<8>  RESULT = 2;               // from the switch: the sums
const bit<16> ALL_WORKERS = 1;          // multicast group: every worker's port

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> type;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  header_words;
    bit<8>  service;
    bit<16> total_bytes;
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> source;
    bit<32> destination;
}

header udp_t {
    bit<16> source_port;
    bit<16> destination_port;
    bit<16> bytes;
    bit<16> checksum;
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
    ipv4_t        ipv4;
    udp_t         udp;
    aggregation_t aggregation;
    values_t      values;
}

struct metadata_t {
    bit<8>  workers;     // how many workers the job has, from table `job`
    bit<48> switch_mac;  // the switch's own addresses, from table `job`
    bit<32> switch_ip;
    bit<1>  is_answer;   // this packet is a RESULT that this switch makes
}

parser MyParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_IPV4: ipv4;
            default: accept;
        }
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.header_words, hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (5, 0, PROTOCOL_UDP): udp;
            default: accept;
        }
    }

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.destination_port, hdr.udp.bytes) {
            (AGGREGATION_PORT, 48): aggregation;  // 8 of UDP, 8 of hdr.aggregation, 32 of hdr.values
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
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.header_words == 5,
            { hdr.ipv4.version, hdr.ipv4.header_words, hdr.ipv4.service, hdr.ipv4.total_bytes,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol,
              hdr.ipv4.source, hdr.ipv4.destination },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control MyIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(8) sums;    // one cell for each value
    register<bit<8>>(1) arrived;  // contributions in `sums`

    // The control plane sets the default action: how many workers there are, and who the switch is.
    action set_job(bit<8> workers, bit<48> mac, bit<32> ip) {
        meta.workers = workers;
        meta.switch_mac = mac;
        meta.switch_ip = ip;
    }

    table job {
        actions = { set_job; NoAction; }
        default_action = NoAction();
    }

    action send_to(bit<9> port) {
        standard.egress_spec = port;
    }

    action drop() {
        mark_to_drop(standard);
    }

    // Ordinary traffic: the port of an Ethernet address.
    table forward {
        key = { hdr.ethernet.destination: exact; }
        actions = { send_to; drop; }
        default_action = drop();
    }

    // The first contribution of a round replaces what the round before left; the others are added.
    action aggregate(in bit<32> cell, in bool is_first, inout bit<32> value) {
        bit<32> sum;
        sums.read(sum, cell);
        value = is_first ? value : sum + value;
        sums.write(cell, value);
    }

    apply {
        job.apply();
        if (standard.checksum_error == 1) {
            mark_to_drop(standard);
        } else if (!hdr.ipv4.isValid() || hdr.ipv4.destination != meta.switch_ip) {
            forward.apply();
        } else if (!hdr.values.isValid() || hdr.aggregation.kind != CONTRIBUTION) {
            mark_to_drop(standard);
        } else {
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
                hdr.aggregation.kind = RESULT;
                meta.is_answer = 1;
                standard.mcast_grp = ALL_WORKERS;
            } else {
                mark_to_drop(standard);
            }
            arrived.write(0, count);
        }
    }
}

control MyEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // A RESULT from the switch to the worker at this port.
    action to_worker(bit<48> mac, bit<32> ip) {
        hdr.ethernet.source = meta.switch_mac;
        hdr.ethernet.destination = mac;
        hdr.ipv4.source = meta.switch_ip;
        hdr.ipv4.destination = ip;
        hdr.ipv4.ttl = 64;
        hdr.udp.source_port = AGGREGATION_PORT;
        hdr.udp.destination_port = AGGREGATION_PORT;
        hdr.udp.checksum = 0;  // RFC 768: the sender computed none
    }

    table worker {
        key = { standard.egress_port: exact; }
        actions = { to_worker; NoAction; }
        default_action = NoAction();
    }

    apply {
        if (hdr.values.isValid() && hdr.aggregation.kind == RESULT && meta.is_answer == 1) {
            worker.apply();
        }
    }
}

control MyComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.header_words == 5,
            { hdr.ipv4.version, hdr.ipv4.header_words, hdr.ipv4.service, hdr.ipv4.total_bytes,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol,
              hdr.ipv4.source, hdr.ipv4.destination },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control MyDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.aggregation);
        packet.emit(hdr.values);
    }
}

V1Switch(MyParser(), MyVerifyChecksum(), MyIngress(), MyEgress(), MyComputeChecksum(), MyDeparser()) main;
