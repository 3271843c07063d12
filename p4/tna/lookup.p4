// SPDX-License-Identifier: Apache-2.0
// LOOKUP_ADD8: codes of 4 bits become lanes of 8 bits, by the job's table of 16 values. Two codes are one lookup, so a
// job has 256 entries in each table of LookupWords. Lookup (deciding pass) finds which of the TABLES tables is the job's.

control Lookup(inout headers_t hdr, inout metadata_t meta) {
    @brief("Which of the tables of LookupWords is the job's.")
    action load_table8(bit<8> table_id) {
        meta.has_table = 1;
        hdr.pass.table_id = table_id;
    }
    action no_table() { hdr.pass.table_id = TABLE_LANES; }

    @brief("Lookup tables of jobs.")
    table lookup {
        key = {
            hdr.hopsum.generation : exact @name("generation");
            hdr.hopsum.op         : exact @name("op");
        }
        actions = { load_table8; @defaultonly no_table; }
        const default_action = no_table;
        size = (bit<32>) MAX_JOBS;
    }

    apply { lookup.apply(); }
}

// Four lanes: two lookups of two codes each. A miss gives lanes of 0: that is how a pass only reads (TABLE_NOTHING).
// The word holds four bytes of codes (parser.p4), of which nibbles h or l are its own; each table reads the half that it
// sets. Lanes are not looked up: IF_ALL and IF_EACH (placement.p4) say whether that is one condition or one for each table.
#define CODE_h0 31:28
#define CODE_l0 27:24
#define CODE_h1 23:20
#define CODE_l1 19:16
#define CODE_h2 15:12
#define CODE_l2 11:8
#define CODE_h3 7:4
#define CODE_l3 3:0

#define LOOKUP_WORD(NAME, NIBBLE, MATCH, LEFT_PLACED, RIGHT_PLACED) \
control NAME(in bit<8> table_id, inout bit<32> word) { \
    action set_left(bit<16> lanes) { word[31:16] = lanes; } \
    action set_right(bit<16> lanes) { word[15:0] = lanes; } \
    action clear_left() { word[31:16] = 0; } \
    action clear_right() { word[15:0] = 0; } \
 \
    LEFT_PLACED table lookup_left { \
        key = { \
            table_id              : MATCH @name("table_id"); \
            word[CODE_##NIBBLE##0] : MATCH @name("c0"); \
            word[CODE_##NIBBLE##1] : MATCH @name("c1"); \
        } \
        actions = { set_left; @defaultonly clear_left; } \
        const default_action = clear_left; \
        size = TABLES * 256; \
    } \
    RIGHT_PLACED table lookup_right { \
        key = { \
            table_id              : MATCH @name("table_id"); \
            word[CODE_##NIBBLE##2] : MATCH @name("c0"); \
            word[CODE_##NIBBLE##3] : MATCH @name("c1"); \
        } \
        actions = { set_right; @defaultonly clear_right; } \
        const default_action = clear_right; \
        size = TABLES * 256; \
    } \
 \
    apply { \
        IF_EACH(table_id != TABLE_LANES, lookup_left.apply();) \
        IF_EACH(table_id != TABLE_LANES, lookup_right.apply();) \
    } \
}

#define INGRESS_LOOKUP_WORD(nibble, n, match, left_placed, right_placed, sum_placed) \
    LOOKUP_WORD(IngressLookupWord##n, nibble, match, left_placed, right_placed)
#define EGRESS_LOOKUP_WORD(nibble, n, match, left_placed, right_placed, sum_placed) \
    LOOKUP_WORD(EgressLookupWord##n, nibble, match, left_placed, right_placed)
INGRESS_WORDS(INGRESS_LOOKUP_WORD)
EGRESS_WORDS(EGRESS_LOOKUP_WORD)

#define INGRESS_LOOKUP(nibble, n, ...) IngressLookupWord##n() word##n;
#define EGRESS_LOOKUP(nibble, n, ...) EgressLookupWord##n() word##n;
#define LOOKUP_APPLY(nibble, n, ...) word##n.apply(pass.table_id, lanes.w##n);

control IngressLookupWords(in pass_h pass, inout lanes_h lanes) {
    LANES(INGRESS_LOOKUP)
    apply {
        LANES(LOOKUP_APPLY)
    }
}

control EgressLookupWords(in pass_h pass, inout lanes_h lanes) {
    LANES(EGRESS_LOOKUP)
    apply {
        LANES(LOOKUP_APPLY)
    }
}
