// SPDX-License-Identifier: Apache-2.0
// Spike, not product code: one pass of lookup and add on Tofino, to measure what fits (docs/adr/0012).
// A pass takes CODES codes of 4 bits from the front of the payload, looks them up and adds them to CODES lanes of 8 bits,
// four to a register of 32 bits; or it puts CODES lanes in front. Compile-time sizes:
//   CODES     codes of a pass: 64, 128 or 256
//   ENTRIES   of one lookup table: 256 for every job that looks up
//   ROWS      of one register: slot copies times passes of a chunk
//   WITH_SLOT the slot protocol's decision as a pass of its own, in the same stages
// p4c-barefoot takes it preprocessed: cpp -P -D__TARGET_TOFINO__=1 -DCODES=64 -I <p4include> lookup_add.p4 > pass.p4, then
// p4c-barefoot --nocpp --target tofino --arch tna -g -o out pass.p4 (2, tofino2 and t2na for Tofino 2).

#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif
#include "../../shared/headers.p4"

#ifndef CODES
#define CODES 128
#endif
#ifndef ENTRIES
#define ENTRIES 1024
#endif
#ifndef ROWS
#define ROWS 16384
#endif
#ifndef KEY
#define KEY exact                   // of the lookups; a stage has 16 exact and 8 ternary matches
#endif
#ifndef ACCESS_KEY
#define ACCESS_KEY ternary          // of the tables that pick a register's operation
#endif

const bit<8> OPERATION_WRITE = 1;
const bit<8> OPERATION_ADD   = 2;
const bit<8> OPERATION_READ  = 3;

// Carried from pass to pass behind the hopsum header, never on the wire.
header pass_h {
    bit<8>  operation;          // OPERATION_*, decided once
    bit<8>  lookup_id;          // the job's lookup table; 0: the payload is lanes (ADD8)
    bit<16> row;                // slot copy * passes + pass
    bit<8>  passes_left;        // of consuming, or of harvesting
    bit<8>  completes;          // 1: a harvest follows
}

#include "unroll.p4"

header codes_h { BYTES(NIBBLES) }
header lanes_h { WORDS(LANES) }

struct headers_t {
    ethernet_h ethernet;
    ipv4_h     ipv4;
    udp_h      udp;
    hopsum_h   hopsum;
    pass_h     pass;
    lanes_h    lanes;
    codes_h    codes;
}
#ifdef WITH_SLOT
#include "slot.p4"
#else
struct metadata_t {}
#endif

parser IngressParser(packet_in packet, out headers_t hdr, out metadata_t meta, out ingress_intrinsic_metadata_t ig) {
    state start {
        packet.extract(ig);
        packet.advance(PORT_METADATA_SIZE);
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.hopsum);
#ifdef WITH_SLOT
        transition select(ig.ingress_port) {
            RECIRCULATE : pass;
            default     : accept;
        }
#else
        transition pass;
#endif
    }
    state pass {
        packet.extract(hdr.pass);
        transition select(hdr.pass.operation, hdr.pass.lookup_id) {
            (OPERATION_READ, _) : empty;
            (_, 0)              : lanes;
            default             : codes;
        }
    }
    state lanes { packet.extract(hdr.lanes); transition accept; }
    // Valid together, or the allocator puts both into the same containers.
    state codes { packet.extract(hdr.codes); hdr.lanes.setValid(); transition accept; }
    state empty { hdr.lanes.setValid(); transition accept; }
}

// Four lanes: two lookups of two codes each, one register. Lanes never carry into each other: n * g <= 255.
control Word(in bit<8> lookup_id, in bit<8> operation, in bit<16> row,
             in bit<4> c0, in bit<4> c1, in bit<4> c2, in bit<4> c3, inout bit<32> word) {
    action left(bit<16> lanes) { word[31:16] = lanes; }
    action right(bit<16> lanes) { word[15:0] = lanes; }
    table lookup_left {
        key = { lookup_id : KEY; c0 : KEY; c1 : KEY; }
        actions = { left; @defaultonly NoAction; }
        const default_action = NoAction;
        size = ENTRIES;
    }
    table lookup_right {
        key = { lookup_id : KEY; c2 : KEY; c3 : KEY; }
        actions = { right; @defaultonly NoAction; }
        const default_action = NoAction;
        size = ENTRIES;
    }
    Register<bit<32>, bit<16>>(ROWS) sums;
    RegisterAction<bit<32>, bit<16>, bit<32>>(sums) write = {
        void apply(inout bit<32> sum, out bit<32> result) { sum = word; result = sum; }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(sums) add = {
        void apply(inout bit<32> sum, out bit<32> result) { sum = sum + word; result = sum; }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(sums) read = {
        void apply(inout bit<32> sum, out bit<32> result) { result = sum; }
    };
    action do_write() { word = write.execute(row); }
    action do_add() { word = add.execute(row); }
    action do_read() { word = read.execute(row); }
    table access {
        key = { operation : ACCESS_KEY; }
        actions = { do_write; do_add; do_read; @defaultonly NoAction; }   // a default action gets no hashed address
        const default_action = NoAction;
        size = 3;
        const entries = {
            OPERATION_WRITE : do_write();
            OPERATION_ADD   : do_add();
            OPERATION_READ  : do_read();
        }
    }
    apply {
        lookup_left.apply();
        lookup_right.apply();
        access.apply();
    }
}

control Ingress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t to_deparser,
                inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    WORDS(INSTANCE)
#ifdef WITH_SLOT
    Slot() slot;
#endif

    // Codes are taken away; lanes are put in front, last pass first, so that they end in element order.
    action consume() {
        hdr.codes.setInvalid();
        hdr.lanes.setInvalid();
        hdr.pass.row = hdr.pass.row + 1;
        hdr.pass.passes_left = hdr.pass.passes_left - 1;
        to_tm.ucast_egress_port = RECIRCULATE;
    }
    action finish() { to_deparser.drop_ctl = 1; }
    action turn(bit<8> passes) {
        hdr.codes.setInvalid();
        hdr.pass.operation = OPERATION_READ;
        hdr.pass.row = hdr.pass.row - 1;
        hdr.pass.passes_left = passes;
        to_tm.ucast_egress_port = RECIRCULATE;
    }
    action harvest() {
        hdr.pass.row = hdr.pass.row - 1;
        hdr.pass.passes_left = hdr.pass.passes_left - 1;
        to_tm.ucast_egress_port = RECIRCULATE;
    }
    action reply() {
        to_tm.mcast_grp_a = (bit<16>)hdr.pass.lookup_id;
        hdr.pass.setInvalid();
    }
    table next_pass {
        key = { hdr.pass.operation : ternary; hdr.pass.passes_left : ternary; hdr.pass.completes : ternary; }
        actions = { consume; finish; turn; harvest; reply; }
        const default_action = consume;
        size = 8;
        const entries = {
            (OPERATION_READ, 1, _) : reply();
            (OPERATION_READ, _, _) : harvest();
            (_, 1, 1)              : turn(1024 / CODES - 1);
            (_, 1, _)              : finish();
        }
    }

    apply {
        if (hdr.pass.isValid()) {
            WORDS(APPLY)
            next_pass.apply();
        }
#ifdef WITH_SLOT
        else {
            slot.apply(hdr, meta, ig, to_deparser, to_tm);
        }
#endif
    }
}

control IngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t to_deparser) {
    apply { packet.emit(hdr); }
}

struct egress_headers_t {}
struct egress_metadata_t {}

parser EgressParser(packet_in packet, out egress_headers_t hdr, out egress_metadata_t meta, out egress_intrinsic_metadata_t eg) {
    state start { packet.extract(eg); transition accept; }
}

control Egress(inout egress_headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t eg,
               in egress_intrinsic_metadata_from_parser_t from_parser,
               inout egress_intrinsic_metadata_for_deparser_t to_deparser,
               inout egress_intrinsic_metadata_for_output_port_t to_port) {
    apply {}
}

control EgressDeparser(packet_out packet, inout egress_headers_t hdr, in egress_metadata_t meta,
                       in egress_intrinsic_metadata_for_deparser_t to_deparser) {
    apply { packet.emit(hdr); }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
