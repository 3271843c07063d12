// SPDX-License-Identifier: Apache-2.0
// The values of a slot copy: written, combined or read as the deciding pass decided, and put into the packet.
//
// A register has 32 bits: four lanes of 8, or one of 32. Packed additions are plain 32-bit additions, never saturating:
// lanes cannot carry, because admission of a job proves n * g <= 255 (docs/adr/0012). A register has room for four
// actions; reading is adding 0.
//
// The table that picks the action is ternary, since lookups need the exact matches; a default action would get no
// hashed address.

#define AGGREGATE_WORD(NAME, PLACED) \
control NAME(in bit<8> operation, in bit<16> row, inout bit<32> word) { \
    Register<bit<32>, bit<16>>(ROWS) values; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(values) write_ = { \
        void apply(inout bit<32> value, out bit<32> result) { value = word; result = value; } \
    }; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(values) add_ = { \
        void apply(inout bit<32> value, out bit<32> result) { value = value + word; result = value; } \
    }; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(values) or_ = { \
        void apply(inout bit<32> value, out bit<32> result) { value = value | word; result = value; } \
    }; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(values) max_ = { \
        void apply(inout bit<32> value, out bit<32> result) { value = max(value, word); result = value; } \
    }; \
    action write() { word = write_.execute(row); } \
    action add()   { word = add_.execute(row); } \
    action or()    { word = or_.execute(row); } \
    action max32() { word = max_.execute(row); } \
 \
    PLACED table access { \
        key = { operation : ternary @name("operation"); } \
        actions = { write; add; or; max32; @defaultonly NoAction; } \
        const default_action = NoAction; \
        size = 8; \
        const entries = { \
            OPERATION_WRITE : write(); \
            OPERATION_ADD   : add(); \
            OPERATION_READ  : add(); \
            OPERATION_OR    : or(); \
            OPERATION_MAX   : max32(); \
        } \
    } \
 \
    apply { access.apply(); } \
}

#define INGRESS_AGGREGATE_WORD(nibble, n, match, left_placed, right_placed, sum_placed) AGGREGATE_WORD(IngressAggregateWord##n, sum_placed)
#define EGRESS_AGGREGATE_WORD(nibble, n, match, left_placed, right_placed, sum_placed) AGGREGATE_WORD(EgressAggregateWord##n, sum_placed)
INGRESS_WORDS(INGRESS_AGGREGATE_WORD)
EGRESS_WORDS(EGRESS_AGGREGATE_WORD)

#define INGRESS_AGGREGATE(nibble, n, ...) IngressAggregateWord##n() word##n;
#define EGRESS_AGGREGATE(nibble, n, ...) EgressAggregateWord##n() word##n;
#define AGGREGATE_APPLY(nibble, n, ...) word##n.apply(pass.operation, pass.row, lanes.w##n);

control IngressAggregate(in pass_h pass, inout lanes_h lanes) {
    LANES(INGRESS_AGGREGATE)
    apply {
        LANES(AGGREGATE_APPLY)
    }
}

control EgressAggregate(in pass_h pass, inout lanes_h lanes) {
    LANES(EGRESS_AGGREGATE)
    apply {
        LANES(AGGREGATE_APPLY)
    }
}
