// SPDX-License-Identifier: Apache-2.0
// Spike, not product code: a pass over ingress AND egress of Tofino 1, 64 codes in each, to measure what fits (docs/adr/0012).
// The first 64 codes of the payload are added in ingress, the next 64 in egress. Both halves share 12 stages, so every
// table says its stage: left to itself, the compiler did not end. A frame between passes is pass | hopsum | payload; the
// outer headers are dropped with the first pass and made again by rewrite, since an egress parser reads 160 bytes at most.
// The egress half reads a row one pass before the ingress half does, so that lanes put in front end in element order:
// the last consuming pass keeps its egress lanes, the last harvest is of ingress alone and replies.
// Sizes as in lookup_add.p4, except CODES, which is 64 for a half. Compiled with --traffic-limit 90 (power).

#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif
#include "../../shared/headers.p4"

#ifndef CODES
#define CODES 64
#endif
#ifndef ENTRIES
#define ENTRIES 1024
#endif
#ifndef ROWS
#define ROWS 16384
#endif
#ifndef ACCESS_KEY
#define ACCESS_KEY ternary          // of the tables that pick a register's operation
#endif

const bit<8> OPERATION_NONE  = 0;
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

const bit<9> RECIRCULATE = 68;

// X(n, nibbles, q): word n takes the high or the low nibbles of word q of the codes.
#define WORDS(X) \
    X(0, HIGH, 0) X(1, HIGH, 1) X(2, HIGH, 2) X(3, HIGH, 3) X(4, HIGH, 4) X(5, HIGH, 5) X(6, HIGH, 6) X(7, HIGH, 7) \
    X(8, LOW, 0) X(9, LOW, 1) X(10, LOW, 2) X(11, LOW, 3) X(12, LOW, 4) X(13, LOW, 5) X(14, LOW, 6) X(15, LOW, 7)
#define HIGH(q) hdr.codes.c##q[31:28], hdr.codes.c##q[23:20], hdr.codes.c##q[15:12], hdr.codes.c##q[7:4]
#define LOW(q) hdr.codes.c##q[27:24], hdr.codes.c##q[19:16], hdr.codes.c##q[11:8], hdr.codes.c##q[3:0]
#define LANES(n, nibbles, q) bit<32> w##n;
#define INGRESS_INSTANCE(n, nibbles, q) IngressWord##n() word##n;
#define EGRESS_INSTANCE(n, nibbles, q) EgressWord##n() word##n;
#define APPLY(n, nibbles, q) \
    word##n.apply(hdr.pass.lookup_id, hdr.pass.operation, hdr.pass.row, nibbles(q), hdr.lanes.w##n);

header codes_h { bit<32> c0; bit<32> c1; bit<32> c2; bit<32> c3; bit<32> c4; bit<32> c5; bit<32> c6; bit<32> c7; }
header lanes_h { WORDS(LANES) }

// Lanes and codes are valid together, which the allocator does not see where setValid in the parser says so.
#define APART(gress, field) @pa_no_overlay(#gress, #field)
#define INGRESS_LANES(n, nibbles, q) APART(ingress, hdr.lanes.w##n)
#define EGRESS_LANES(n, nibbles, q) APART(egress, hdr.lanes.w##n)
#define CODES_APART(gress) \
    APART(gress, hdr.codes.c0) APART(gress, hdr.codes.c1) APART(gress, hdr.codes.c2) APART(gress, hdr.codes.c3) \
    APART(gress, hdr.codes.c4) APART(gress, hdr.codes.c5) APART(gress, hdr.codes.c6) APART(gress, hdr.codes.c7)
WORDS(INGRESS_LANES)
WORDS(EGRESS_LANES)
CODES_APART(ingress)
CODES_APART(egress)

struct headers_t {
    pass_h     pass;
    ethernet_h ethernet;
    ipv4_h     ipv4;
    udp_h      udp;
    hopsum_h   hopsum;
    lanes_h    lanes;
    codes_h    codes;
}
struct metadata_t {}

parser IngressParser(packet_in packet, out headers_t hdr, out metadata_t meta, out ingress_intrinsic_metadata_t ig) {
    state start {
        packet.extract(ig);
        packet.advance(PORT_METADATA_SIZE);
        transition select(ig.ingress_port) {
            RECIRCULATE : pass;
            default     : outside;
        }
    }
    state outside {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.hopsum);
        transition accept;
    }
    state pass {
        packet.extract(hdr.pass);
        packet.extract(hdr.hopsum);
        transition select(hdr.pass.operation, hdr.pass.lookup_id) {
            (OPERATION_READ, _) : empty;
            (_, 0)              : lanes;
            default             : codes;
        }
    }
    state lanes { packet.extract(hdr.lanes); transition accept; }
    state codes { packet.extract(hdr.codes); hdr.lanes.setValid(); transition accept; }
    state empty { hdr.lanes.setValid(); transition accept; }
}

// Four lanes as in lookup_add.p4; annotations take no parameters of a control, so each word is a control of its own.
#define WORD_CONTROL(NAME, LOOKUP_KEY, LOOKUP_STAGE, SUM_STAGE) \
control NAME(in bit<8> lookup_id, in bit<8> operation, in bit<16> row, \
             in bit<4> c0, in bit<4> c1, in bit<4> c2, in bit<4> c3, inout bit<32> word) { \
    action left(bit<16> lanes) { word[31:16] = lanes; } \
    action right(bit<16> lanes) { word[15:0] = lanes; } \
    @stage(LOOKUP_STAGE) table lookup_left { \
        key = { lookup_id : LOOKUP_KEY; c0 : LOOKUP_KEY; c1 : LOOKUP_KEY; } \
        actions = { left; @defaultonly NoAction; } \
        const default_action = NoAction; \
        size = ENTRIES; \
    } \
    @stage(LOOKUP_STAGE) table lookup_right { \
        key = { lookup_id : LOOKUP_KEY; c2 : LOOKUP_KEY; c3 : LOOKUP_KEY; } \
        actions = { right; @defaultonly NoAction; } \
        const default_action = NoAction; \
        size = ENTRIES; \
    } \
    Register<bit<32>, bit<16>>(ROWS) sums; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(sums) write = { \
        void apply(inout bit<32> sum, out bit<32> result) { sum = word; result = sum; } \
    }; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(sums) add = { \
        void apply(inout bit<32> sum, out bit<32> result) { sum = sum + word; result = sum; } \
    }; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(sums) read = { \
        void apply(inout bit<32> sum, out bit<32> result) { result = sum; } \
    }; \
    action do_write() { word = write.execute(row); } \
    action do_add() { word = add.execute(row); } \
    action do_read() { word = read.execute(row); } \
    @stage(SUM_STAGE) table access { \
        key = { operation : ACCESS_KEY; } \
        actions = { do_write; do_add; do_read; @defaultonly NoAction; }    \
        const default_action = NoAction; \
        size = 3; \
        const entries = { \
            OPERATION_WRITE : do_write(); \
            OPERATION_ADD   : do_add(); \
            OPERATION_READ  : do_read(); \
        } \
    } \
    apply { \
        lookup_left.apply(); \
        lookup_right.apply(); \
        access.apply(); \
    } \
}
// Stages 0-3 hold 8 exact and 4 ternary lookups each, 4-7 hold 4 exact lookups beside 4 registers, 8-11 hold 4 registers.
WORD_CONTROL(IngressWord0, exact, 0, 4)
WORD_CONTROL(IngressWord1, exact, 0, 4)
WORD_CONTROL(IngressWord2, exact, 0, 4)
WORD_CONTROL(IngressWord3, exact, 0, 4)
WORD_CONTROL(IngressWord4, exact, 1, 5)
WORD_CONTROL(IngressWord5, exact, 1, 5)
WORD_CONTROL(IngressWord6, exact, 1, 5)
WORD_CONTROL(IngressWord7, exact, 1, 5)
WORD_CONTROL(IngressWord8, exact, 2, 6)
WORD_CONTROL(IngressWord9, exact, 2, 6)
WORD_CONTROL(IngressWord10, exact, 2, 6)
WORD_CONTROL(IngressWord11, exact, 2, 6)
WORD_CONTROL(IngressWord12, exact, 3, 7)
WORD_CONTROL(IngressWord13, exact, 3, 7)
WORD_CONTROL(IngressWord14, exact, 3, 7)
WORD_CONTROL(IngressWord15, exact, 3, 7)
WORD_CONTROL(EgressWord0, ternary, 0, 8)
WORD_CONTROL(EgressWord1, ternary, 0, 8)
WORD_CONTROL(EgressWord2, ternary, 1, 8)
WORD_CONTROL(EgressWord3, ternary, 1, 8)
WORD_CONTROL(EgressWord4, ternary, 2, 9)
WORD_CONTROL(EgressWord5, ternary, 2, 9)
WORD_CONTROL(EgressWord6, ternary, 3, 9)
WORD_CONTROL(EgressWord7, ternary, 3, 9)
WORD_CONTROL(EgressWord8, exact, 4, 10)
WORD_CONTROL(EgressWord9, exact, 4, 10)
WORD_CONTROL(EgressWord10, exact, 5, 10)
WORD_CONTROL(EgressWord11, exact, 5, 10)
WORD_CONTROL(EgressWord12, exact, 6, 11)
WORD_CONTROL(EgressWord13, exact, 6, 11)
WORD_CONTROL(EgressWord14, exact, 7, 11)
WORD_CONTROL(EgressWord15, exact, 7, 11)

control Ingress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t to_deparser,
                inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    WORDS(INGRESS_INSTANCE)

    action consume() {
        hdr.codes.setInvalid();
        hdr.lanes.setInvalid();
        hdr.pass.row = hdr.pass.row + 1;
        hdr.pass.passes_left = hdr.pass.passes_left - 1;
        to_tm.ucast_egress_port = RECIRCULATE;
    }
    action finish() { to_deparser.drop_ctl = 1; }
    action harvest() {
        hdr.pass.row = hdr.pass.row - 1;
        hdr.pass.passes_left = hdr.pass.passes_left + 1;
        to_tm.ucast_egress_port = RECIRCULATE;
    }
    action reply() {
        to_tm.mcast_grp_a = (bit<16>)hdr.pass.lookup_id;
        hdr.pass.setInvalid();
    }
    table next_pass {
        key = { hdr.pass.operation : ternary; hdr.pass.passes_left : ternary; hdr.pass.completes : ternary; }
        actions = { consume; finish; harvest; reply; }
        const default_action = consume;
        size = 8;
        const entries = {
            (OPERATION_READ, 512 / CODES, _) : reply();
            (OPERATION_READ, _, _)            : harvest();
            (_, 0, 0)                         : finish();
        }
    }

    apply {
        if (hdr.pass.isValid()) {
            WORDS(APPLY)
            next_pass.apply();
        }
    }
}

control IngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t to_deparser) {
    apply { packet.emit(hdr); }
}

struct egress_metadata_t {}

parser EgressParser(packet_in packet, out headers_t hdr, out egress_metadata_t meta, out egress_intrinsic_metadata_t eg) {
    state start {
        packet.extract(eg);
        transition select(eg.egress_port) {
            RECIRCULATE : pass;
            default     : reply;
        }
    }
    state reply { packet.extract(hdr.hopsum); transition accept; }
    state pass {
        packet.extract(hdr.pass);
        packet.extract(hdr.hopsum);
        transition select(hdr.pass.operation, hdr.pass.lookup_id) {
            (OPERATION_READ, _) : empty;
            (OPERATION_NONE, _) : accept;
            (_, 0)              : lanes;
            default             : codes;
        }
    }
    state lanes { packet.extract(hdr.lanes); transition accept; }
    state codes { packet.extract(hdr.codes); hdr.lanes.setValid(); transition accept; }
    state empty { hdr.lanes.setValid(); transition accept; }
}

control Egress(inout headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t eg,
               in egress_intrinsic_metadata_from_parser_t from_parser,
               inout egress_intrinsic_metadata_for_deparser_t to_deparser,
               inout egress_intrinsic_metadata_for_output_port_t to_port) {
    WORDS(EGRESS_INSTANCE)
    action keep() { hdr.codes.setInvalid(); }
    action consume() { hdr.codes.setInvalid(); hdr.lanes.setInvalid(); }
    // the last consuming pass keeps its egress half of the lanes and turns to reading
    action turn() { hdr.codes.setInvalid(); hdr.pass.operation = OPERATION_READ; }
    table next_half {
        key = { hdr.pass.operation : ternary; hdr.pass.passes_left : ternary; }
        actions = { consume; turn; keep; }
        const default_action = consume;
        size = 8;
        const entries = {
            (OPERATION_READ, _) : keep();
            (_, 0)              : turn();
        }
    }
    action set_addresses(bit<48> destination_mac, bit<32> source, bit<32> destination, bit<16> port) {
        hdr.ethernet.setValid(); hdr.ipv4.setValid(); hdr.udp.setValid();
        hdr.ethernet.dst = destination_mac;
        hdr.ipv4.src = source;
        hdr.ipv4.dst = destination;
        hdr.udp.dst_port = port;
    }
    table rewrite {
        key = { hdr.hopsum.epoch : exact; eg.egress_rid : exact; }
        actions = { set_addresses; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 1024;
    }
    apply {
        if (hdr.lanes.isValid()) {
            WORDS(APPLY)
            next_half.apply();
        } else {
            rewrite.apply();
        }
    }
}

control EgressDeparser(packet_out packet, inout headers_t hdr, in egress_metadata_t meta,
                       in egress_intrinsic_metadata_for_deparser_t to_deparser) {
    apply { packet.emit(hdr); }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
