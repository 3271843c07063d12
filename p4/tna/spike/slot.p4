// SPDX-License-Identifier: Apache-2.0
// Spike, not product code: the slot protocol's decision in a pass of its own, for the hopsum header as it is.
// Every register is accessed at most once per packet, in this order: tag, seen (two), ctr, contributors (two).
// Left out: checks of length, port, address and slot range; PROBE; the op of a copy; a leaf's rows.

#ifndef COPIES
#define COPIES 4096
#endif

const int<8> CLOSED = -64;          // ctr of a complete round

struct metadata_t {
    bit<16> copy;
    bit<32> bit_low;                // the sender's bit of the bitmaps
    bit<32> bit_high;
    bit<32> before_low;             // seen, before this packet; 0: another round
    bit<32> before_high;
    int<8>  need_less_1;            // quorum - 1, or with the flush flag min(quorum, min_quorum) - 1
    int<8>  close_at;               // for a duplicate: 127 without the flush flag
    int<8>  first;                  // what a new round writes into ctr
    int<8>  argument;               // first for a new round, need_less_1 for the held one
    bit<8>  first_closes;
    bit<8>  class;                  // CLASS_*
    int<8>  old;
    int<8>  threshold;
    bit<8>  remainder;              // negative: not complete with this packet
    bit<8>  old_bits;
    bit<16> group;
}
struct tag_t { bit<32> round; bit<32> epoch; }
struct seen_t { bit<32> bits; bit<32> round; }

const bit<8> CLASS_NEW       = 1;
const bit<8> CLASS_SAME      = 2;   // same round, new contributor
const bit<8> CLASS_OLD       = 3;
const bit<8> CLASS_DUPLICATE = 4;

#define SEEN_LOW(w) (_, 32w1 << w &&& 32w1 << w, _, w) : close();
#define SEEN_HIGH(w) (_, _, 32w1 << (w - 32) &&& 32w1 << (w - 32), w) : close();
#define EIGHT(X, w) X(w) X(w + 1) X(w + 2) X(w + 3) X(w + 4) X(w + 5) X(w + 6) X(w + 7)

control Slot(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig,
             inout ingress_intrinsic_metadata_for_deparser_t to_deparser,
             inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    // The lowest bit of the round is part of the key: each version of the copies has its own base.
    action drop() { to_deparser.drop_ctl = 1; }
    action admit(bit<16> base, bit<32> low, bit<32> high, int<8> need_less_1, int<8> close_at, int<8> first, bit<8> first_closes,
                 bit<16> group, bit<8> lookup_id) {
        meta.copy = base + hdr.hopsum.slot;
        meta.bit_low = low;
        meta.bit_high = high;
        meta.need_less_1 = need_less_1;
        meta.close_at = close_at;
        meta.first = first;
        meta.first_closes = first_closes;
        meta.group = group;
        hdr.pass.setValid();
        hdr.pass.lookup_id = lookup_id;
        hdr.pass.passes_left = 1024 / CODES;
    }
    table admission {
        key = {
            hdr.hopsum.epoch      : exact;
            hdr.hopsum.worker     : exact;
            hdr.hopsum.kind       : exact;
            hdr.hopsum.flags      : exact;
            hdr.hopsum.round[0:0] : exact;
        }
        actions = { admit; drop; }
        const default_action = drop;
        size = 4096;
    }

    // Newer round or another epoch: overwritten, 0 returned; else the held round.
    Register<tag_t, bit<16>>(COPIES) tag;
    RegisterAction<tag_t, bit<16>, bit<32>>(tag) update_tag = {
        void apply(inout tag_t held, out bit<32> result) {
            if (held.epoch != hdr.hopsum.epoch || held.round < hdr.hopsum.round) {
                held.round = hdr.hopsum.round;
                held.epoch = hdr.hopsum.epoch;
                result = 0;
            } else {
                result = held.round;
            }
        }
    };
    action do_tag() { hdr.hopsum.held = update_tag.execute(meta.copy); }

#define SEEN(half) \
    Register<seen_t, bit<16>>(COPIES) seen_##half; \
    RegisterAction<seen_t, bit<16>, bit<32>>(seen_##half) open_##half = { \
        void apply(inout seen_t seen, out bit<32> before) { \
            seen.bits = meta.bit_##half; \
            seen.round = hdr.hopsum.round; \
            before = 0; \
        } \
    }; \
    RegisterAction<seen_t, bit<16>, bit<32>>(seen_##half) mark_##half = { \
        void apply(inout seen_t seen, out bit<32> before) { \
            before = 0; \
            if (seen.round == hdr.hopsum.round) { before = seen.bits; seen.bits = seen.bits | meta.bit_##half; } \
        } \
    };
    SEEN(low)
    SEEN(high)
    action do_open_low() { meta.before_low = open_low.execute(meta.copy); meta.argument = meta.first; }
    action do_mark_low() { meta.before_low = mark_low.execute(meta.copy); meta.argument = meta.need_less_1; }
    action do_open_high() { meta.before_high = open_high.execute(meta.copy); }
    action do_mark_high() { meta.before_high = mark_high.execute(meta.copy); }
    table see_low {
        key = { hdr.hopsum.held : ternary; }
        actions = { do_open_low; do_mark_low; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 4;
        const entries = { 0 : do_open_low(); _ : do_mark_low(); }
    }
    table see_high {
        key = { hdr.hopsum.held : ternary; }
        actions = { do_open_high; do_mark_high; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 4;
        const entries = { 0 : do_open_high(); _ : do_mark_high(); }
    }

    // >= 0 collecting, < 0 complete.
    Register<int<8>, bit<16>>(COPIES) ctr;
    RegisterAction<int<8>, bit<16>, int<8>>(ctr) ctr_open = {
        void apply(inout int<8> value, out int<8> old) { old = value; value = meta.argument; }
    };
    RegisterAction<int<8>, bit<16>, int<8>>(ctr) ctr_add = {
        void apply(inout int<8> value, out int<8> old) {
            old = value;
            if (value >= 0) { if (value >= meta.argument) { value = CLOSED; } else { value = value + 1; } }
        }
    };
    RegisterAction<int<8>, bit<16>, int<8>>(ctr) ctr_close = {
        void apply(inout int<8> value, out int<8> old) { old = value; if (value >= meta.close_at) { value = CLOSED; } }
    };
    action open() { meta.old = ctr_open.execute(meta.copy); meta.class = CLASS_NEW; meta.threshold = meta.argument; }
    action add() { meta.old = ctr_add.execute(meta.copy); meta.class = CLASS_SAME; meta.threshold = meta.argument; }
    action close() { meta.old = ctr_close.execute(meta.copy); meta.class = CLASS_DUPLICATE; meta.threshold = meta.close_at; }
    action old() { meta.class = CLASS_OLD; }
    table count {
        key = { hdr.hopsum.held : ternary; meta.before_low : ternary; meta.before_high : ternary; hdr.hopsum.worker : ternary; }
        actions = { open; add; close; old; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 72;
        const entries = {
            (0, _, _, _) : open();
            (_, 0, 0, _) : old();
            EIGHT(SEEN_LOW, 0) EIGHT(SEEN_LOW, 8) EIGHT(SEEN_LOW, 16) EIGHT(SEEN_LOW, 24)
            EIGHT(SEEN_HIGH, 32) EIGHT(SEEN_HIGH, 40) EIGHT(SEEN_HIGH, 48) EIGHT(SEEN_HIGH, 56)
            (_, _, _, _) : add();
        }
    }

    action subtract() { meta.remainder = (bit<8>)meta.old - (bit<8>)meta.threshold; meta.old_bits = (bit<8>)meta.old; }
    action work(bit<8> operation, bit<8> completes) {
        hdr.pass.operation = operation;
        hdr.pass.completes = completes;
        to_tm.ucast_egress_port = RECIRCULATE;
    }
    action answer() {
        hdr.pass.operation = OPERATION_READ;
        hdr.hopsum.kind = 2;
        to_tm.ucast_egress_port = RECIRCULATE;
    }
    action stale() {
        hdr.pass.operation = 0;
        hdr.pass.setInvalid();
        hdr.hopsum.kind = 3;
        to_tm.ucast_egress_port = ig.ingress_port;
    }
    table decide {
        key = { meta.class : ternary; meta.first_closes : ternary; meta.old_bits : ternary; meta.remainder : ternary; }
        actions = { work; answer; stale; drop; }
        const default_action = drop;
        size = 16;
        const entries = {
            (CLASS_OLD, _, _, _)                    : stale();
            (CLASS_NEW, 0, _, _)                    : work(OPERATION_WRITE, 0);
            (CLASS_NEW, _, _, _)                    : work(OPERATION_WRITE, 1);
            (_, _, 0x80 &&& 0x80, _)                : answer();
            (CLASS_SAME, _, _, 0x80 &&& 0x80)       : work(OPERATION_ADD, 0);
            (CLASS_SAME, _, _, _)                   : work(OPERATION_ADD, 1);
            (CLASS_DUPLICATE, _, _, 0x80 &&& 0x80)  : drop();
            (CLASS_DUPLICATE, _, _, _)              : answer();
        }
    }

#define CONTRIBUTORS(half, range) \
    Register<bit<32>, bit<16>>(COPIES) contributors_##half; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(contributors_##half) write_##half = { \
        void apply(inout bit<32> bits, out bit<32> result) { bits = meta.bit_##half; result = bits; } \
    }; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(contributors_##half) add_##half = { \
        void apply(inout bit<32> bits, out bit<32> result) { bits = bits | meta.bit_##half; result = bits; } \
    }; \
    RegisterAction<bit<32>, bit<16>, bit<32>>(contributors_##half) read_##half = { \
        void apply(inout bit<32> bits, out bit<32> result) { result = bits; } \
    }; \
    action do_write_##half() { hdr.hopsum.contributors[range] = write_##half.execute(meta.copy); } \
    action do_add_##half() { hdr.hopsum.contributors[range] = add_##half.execute(meta.copy); } \
    action do_read_##half() { hdr.hopsum.contributors[range] = read_##half.execute(meta.copy); } \
    table contribute_##half { \
        key = { hdr.pass.operation : ternary; } \
        actions = { do_write_##half; do_add_##half; do_read_##half; @defaultonly NoAction; } \
        const default_action = NoAction; \
        size = 4; \
        const entries = { \
            OPERATION_WRITE : do_write_##half(); \
            OPERATION_ADD   : do_add_##half(); \
            OPERATION_READ  : do_read_##half(); \
        } \
    }
    CONTRIBUTORS(low, 31:0)
    CONTRIBUTORS(high, 63:32)
    action set_row() { hdr.pass.row = meta.copy << 3; }

    apply {
        if (admission.apply().hit) {
            do_tag();
            see_low.apply();
            see_high.apply();
            count.apply();
            subtract();
            decide.apply();
            set_row();
            contribute_low.apply();
            contribute_high.apply();
        }
    }
}
