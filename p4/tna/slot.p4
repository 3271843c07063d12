// SPDX-License-Identifier: Apache-2.0
// The slot protocol: which of a slot's two copies, what the copy holds, and what this packet means to it.
//
// tag = generation, round is the only validity information: when it differs, everything else in the copy is dead (S2,
// S3). Nobody but this control writes these registers. Each is accessed at most once per pass, in this order: tag, op,
// seen (two), ctr, contributors (two). The tables between them have constant entries; `class` says more with each.
//
// A packet comes here twice if its RESULT has values: in the pass that decides, and in the last pass, when all lanes are
// there. Both are passes from the loop port of the slot, which is serial.

#define COPY hdr.pass.row

const int<8> FINAL = -64;               // ctr of a complete round; else how many are in

const bit<4> NO_EVENT = 15;             // a cell of job_events that says nothing

const bit<8> CLASS_NEW       = 1;       // another generation, or a newer round
const bit<8> CLASS_SAME      = 2;       // the round that the copy holds, a new contributor
const bit<8> CLASS_DUPLICATE = 3;
const bit<8> CLASS_OLD       = 4;       // an older round
const bit<8> CLASS_MISMATCH  = 5;       // the round that the copy holds, with another op
const bit<8> CLASS_EMPTY     = 6;       // PROBE: nothing of this generation
const bit<8> CLASS_PROBED    = 7;

struct tag_t { bit<32> round; bit<32> generation; }
struct seen_t { bit<32> bits; bit<32> round; }

#define IF_SEEN_LOW(w) (CLASS_SAME, 32w1 << w &&& 32w1 << w, _, 32w1 << w &&& 32w1 << w, _) : close_();
#define IF_SEEN_HIGH(w) (CLASS_SAME, _, 32w1 << w &&& 32w1 << w, _, 32w1 << w &&& 32w1 << w) : close_();
#define EIGHT(X, w) X(w) X(w + 1) X(w + 2) X(w + 3) X(w + 4) X(w + 5) X(w + 6) X(w + 7)
#define ALL32(X) EIGHT(X, 0) EIGHT(X, 8) EIGHT(X, 16) EIGHT(X, 24)

control Slot(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig,
             inout ingress_intrinsic_metadata_for_deparser_t to_deparser,
             inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    bit<8>  class_;
    bit<8>  mismatch;                   // 1: the copy has another op
    bit<8>  contributors_op;            // OPERATION_* on contributors
    bit<32> difference;                 // of the held round and this one
    bit<32> before_low;                 // seen, before this packet; 0: another round
    bit<32> before_high;
    int<8>  need_less_1;                // quorum - 1, or with FLUSH min(quorum, min_quorum) - 1
    int<8>  close_at;                   // for a duplicate: min_quorum with FLUSH, else out of reach
    int<8>  first;                      // what a new round writes into ctr
    bit<8>  first_closes;
    int<8>  argument;                   // first for a new round, need_less_1 for the held one
    int<8>  threshold;
    int<8>  old;
    bit<8>  old_bits;
    bit<8>  remainder;                  // negative: not complete with this packet

    // ---- need
    action plain_need() { need_less_1 = meta.quorum; close_at = 127; }
    action flush_need() { need_less_1 = min(meta.quorum, meta.min_quorum); close_at = meta.min_quorum; }
    table need {
        key = { hdr.hopsum.flags : exact @name("flags"); }
        actions = { plain_need; flush_need; }
        const default_action = plain_need;
        size = 2;
        const entries = { FLAG_FLUSH : flush_need(); }
    }
    action open_only()  { first = 1; first_closes = 0; need_less_1 = need_less_1 - 1; }
    action open_close_() { first = FINAL; first_closes = 1; need_less_1 = need_less_1 - 1; }
    table first_need {
        key = { need_less_1 : ternary @name("need"); }
        actions = { open_only; open_close_; }
        const default_action = open_only;
        size = 2;
        const entries = { 1 : open_close_(); }
    }

    // ---- tag. Newer round or another generation: overwritten, 0 returned; else the held round. Reading: 0 of another
    // generation.
    Register<tag_t, bit<16>>(COPIES) tag;
    RegisterAction<tag_t, bit<16>, bit<32>>(tag) update_tag = {
        void apply(inout tag_t held, out bit<32> result) {
            if (held.generation != hdr.hopsum.generation || held.round < hdr.hopsum.round) {
                held.round = hdr.hopsum.round;
                held.generation = hdr.hopsum.generation;
                result = 0;
            } else {
                result = held.round;
            }
        }
    };
    RegisterAction<tag_t, bit<16>, bit<32>>(tag) read_tag = {
        void apply(inout tag_t held, out bit<32> result) {
            result = 0;
            if (held.generation == hdr.hopsum.generation) { result = held.round; }
        }
    };
    action do_update_tag() { hdr.hopsum.held = update_tag.execute(COPY); }
    action do_read_tag() { hdr.hopsum.held = read_tag.execute(COPY); }
    SLOT_STAGE(4) table access_tag {
        key = { meta.access : ternary @name("access"); }
        actions = { do_update_tag; do_read_tag; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 4;
        const entries = { ACCESS_UPDATE : do_update_tag(); _ : do_read_tag(); }
    }

    // ---- op of the round
    Register<bit<8>, bit<16>>(COPIES) op;
    RegisterAction<bit<8>, bit<16>, bit<8>>(op) write_op = {
        void apply(inout bit<8> held, out bit<8> result) { held = hdr.hopsum.op; result = 0; }
    };
    RegisterAction<bit<8>, bit<16>, bit<8>>(op) compare_op = {
        void apply(inout bit<8> held, out bit<8> result) { result = 0; if (held != hdr.hopsum.op) { result = 1; } }
    };
    RegisterAction<bit<8>, bit<16>, bit<8>>(op) read_op = {
        void apply(inout bit<8> held, out bit<8> result) { result = held; }
    };
    action do_write_op() { mismatch = write_op.execute(COPY); }
    action do_compare_op() { mismatch = compare_op.execute(COPY); }
    action do_read_op() { hdr.hopsum.op = read_op.execute(COPY); }
    SLOT_STAGE(5) table access_op {
        key = {
            meta.access     : ternary @name("access");
            hdr.hopsum.held : ternary @name("held");
        }
        actions = { do_write_op; do_compare_op; do_read_op; NoAction; }
        const default_action = NoAction;
        size = 4;
        const entries = {
            (ACCESS_UPDATE, 0) : do_write_op();
            (ACCESS_UPDATE, _) : do_compare_op();
            (ACCESS_PROBE, 0)  : NoAction();
            (ACCESS_PROBE, _)  : do_read_op();
        }
    }
    action compare_rounds() { difference = hdr.hopsum.held ^ hdr.hopsum.round; }

    // ---- seen. A held round has at least one bit set, so 0 returned is another round.
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
    action do_open_low() { before_low = open_low.execute(COPY); argument = first; class_ = CLASS_NEW; }
    action do_mark_low() { before_low = mark_low.execute(COPY); argument = need_less_1; class_ = CLASS_SAME; }
    action do_open_high() { before_high = open_high.execute(COPY); }
    action do_mark_high() { before_high = mark_high.execute(COPY); }
    action is_mismatch() { class_ = CLASS_MISMATCH; }
    action is_empty() { class_ = CLASS_EMPTY; }
    action is_probed() { class_ = CLASS_PROBED; }
    SLOT_STAGE(6) table see_low {
        key = {
            meta.access     : ternary @name("access");
            hdr.hopsum.held : ternary @name("held");
            difference      : ternary @name("difference");
            mismatch        : ternary @name("mismatch");
        }
        actions = { do_open_low; do_mark_low; is_mismatch; is_empty; is_probed; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 8;
        const entries = {
            (ACCESS_PROBE, 0, _, _)  : is_empty();
            (ACCESS_PROBE, _, _, _)  : is_probed();
            (ACCESS_UPDATE, 0, _, _) : do_open_low();
            (ACCESS_UPDATE, _, 0, 1) : is_mismatch();
            (ACCESS_UPDATE, _, _, _) : do_mark_low();
        }
    }
    SLOT_STAGE(6) table see_high {
        key = {
            meta.access     : ternary @name("access");
            hdr.hopsum.held : ternary @name("held");
            difference      : ternary @name("difference");
            mismatch        : ternary @name("mismatch");
        }
        actions = { do_open_high; do_mark_high; NoAction; }
        const default_action = NoAction;
        size = 4;
        const entries = {
            (ACCESS_UPDATE, 0, _, _) : do_open_high();
            (ACCESS_UPDATE, _, 0, 1) : NoAction();
            (ACCESS_UPDATE, _, _, _) : do_mark_high();
        }
    }

    // ---- ctr: >= 0 collecting, < 0 complete
    Register<int<8>, bit<16>>(COPIES) ctr;
    RegisterAction<int<8>, bit<16>, int<8>>(ctr) ctr_open = {
        void apply(inout int<8> value, out int<8> before) { before = value; value = argument; }
    };
    RegisterAction<int<8>, bit<16>, int<8>>(ctr) ctr_add = {
        void apply(inout int<8> value, out int<8> before) {
            before = value;
            if (value >= 0) { if (value >= argument) { value = FINAL; } else { value = value + 1; } }
        }
    };
    RegisterAction<int<8>, bit<16>, int<8>>(ctr) ctr_close = {
        void apply(inout int<8> value, out int<8> before) { before = value; if (value >= close_at) { value = FINAL; } }
    };
    action open_() { old = ctr_open.execute(COPY); threshold = argument; }
    action add_() { old = ctr_add.execute(COPY); threshold = argument; }
    action close_() { old = ctr_close.execute(COPY); threshold = close_at; class_ = CLASS_DUPLICATE; }
    // A PROBE has no flags, so close_at is out of reach.
    action probe_() { old = ctr_close.execute(COPY); threshold = close_at; }
    action old_() { class_ = CLASS_OLD; }
    SLOT_STAGE(7) table count {
        key = {
            class_        : ternary @name("class");
            before_low    : ternary @name("before_low");
            before_high   : ternary @name("before_high");
            meta.bit_low  : ternary @name("bit_low");
            meta.bit_high : ternary @name("bit_high");
        }
        actions = { open_; add_; close_; probe_; old_; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 72;
        const entries = {
            (CLASS_NEW, _, _, _, _)    : open_();
            (CLASS_PROBED, _, _, _, _) : probe_();
            (CLASS_SAME, 0, 0, _, _)   : old_();
            ALL32(IF_SEEN_LOW)
            ALL32(IF_SEEN_HIGH)
            (CLASS_SAME, _, _, _, _)   : add_();
        }
    }
    action subtract() { remainder = (bit<8>) old - (bit<8>) threshold; old_bits = (bit<8>) old; }

    // ---- the decision
    action recirculate_with(bit<8> operation, bit<8> contributors_op_, bit<8> reply, bit<4> event) {
        hdr.pass.operation = operation;
        contributors_op = contributors_op_;
        hdr.pass.reply = reply;
        hdr.pass.cell[3:0] = event;
        to_tm.ucast_egress_port = ig.ingress_port;
    }
    action open()       { recirculate_with(OPERATION_WRITE, OPERATION_WRITE, REPLY_NONE, (bit<4>) EVENT_ADDED); }
    action open_close() { recirculate_with(OPERATION_WRITE, OPERATION_WRITE, REPLY_RESULT, (bit<4>) EVENT_ADDED); }
    action add()        { recirculate_with(meta.combine, OPERATION_ADD, REPLY_NONE, (bit<4>) EVENT_ADDED); }
    action add_close()  { recirculate_with(meta.combine, OPERATION_ADD, REPLY_RESULT, (bit<4>) EVENT_ADDED); }
    action nothing_new(bit<8> reply, bit<4> event) {
        recirculate_with(OPERATION_READ, OPERATION_READ, reply, event);
        hdr.pass.table_id = TABLE_NOTHING;
    }
    action close()      { nothing_new(REPLY_RESULT, 15); }      // counted when the RESULT leaves
    action answer()     { nothing_new(REPLY_ANSWER, (bit<4>) EVENT_ANSWERED); }
    action stale()      { nothing_new(REPLY_STALE, (bit<4>) EVENT_STALE); }
    action ignore() {
        hdr.pass.cell[3:0] = (bit<4>) EVENT_DUPLICATE;
        to_deparser.drop_ctl = 1;
    }
    action op_mismatch() {
        hdr.pass.cell[3:0] = NO_EVENT;
        meta.drop_reason = DROP_OP_MISMATCH;
    }
    action report(bit<8> contributors_op_, bit<16> state) {
        contributors_op = contributors_op_;
        hdr.pass.reply = REPLY_STATE;
        hdr.pass.cell[3:0] = (bit<4>) EVENT_PROBED;
        hdr.hopsum.count = state;
        to_tm.ucast_egress_port = hdr.pass.port;
    }
    @brief("What a packet means to its slot: constant entries.")
    SLOT_STAGE(9) table decide {
        key = {
            class_          : ternary @name("class");
            first_closes    : ternary @name("first_closes");
            old_bits        : ternary @name("old");
            remainder       : ternary @name("remainder");
        }
        actions = { open; open_close; add; add_close; close; ignore; answer; stale; op_mismatch; report; }
        const default_action = ignore;
        size = 16;
#define IS_FINAL 0x80 &&& 0x80
#define IS_SHORT 0x80 &&& 0x80
        const entries = {
            // class, first closes, old, remainder
            (CLASS_NEW, 0, _, _)                : open();               // all := this packet (S3)
            (CLASS_NEW, _, _, _)                : open_close();         // ... which is enough already
            (CLASS_OLD, _, _, _)                : stale();              // touches nothing (S7)
            (CLASS_MISMATCH, _, _, _)           : op_mismatch();
            (CLASS_EMPTY, _, _, _)              : report(OPERATION_WRITE, STATE_EMPTY);
            (CLASS_PROBED, _, IS_FINAL, _)      : report(OPERATION_READ, STATE_FINAL);
            (CLASS_PROBED, _, _, _)             : report(OPERATION_READ, STATE_COLLECTING);
            (_, _, IS_FINAL, _)                 : answer();             // duplicate or late: RESULT to the sender (S6)
            (CLASS_SAME, _, _, IS_SHORT)        : add();                // once per child (S4)
            (CLASS_SAME, _, _, _)               : add_close();          // complete: RESULT to all (S5)
            (CLASS_DUPLICATE, _, _, IS_SHORT)   : ignore();             // duplicate while collecting
            (CLASS_DUPLICATE, _, _, _)          : close();              // ... past its deadline: RESULT to all (S8)
        }
    }

    // ---- the last pass: all lanes are in the packet. If the copy has moved on meanwhile, they may be of two rounds.
    action result_to_all() {
        hdr.pass.step = STEP_REPLY;
        hdr.pass.cell[3:0] = (bit<4>) EVENT_COMPLETED;
        to_tm.mcast_grp_a = hdr.pass.group;
    }
    action result_to_one() {
        hdr.pass.step = STEP_REPLY;
        hdr.pass.cell[3:0] = NO_EVENT;
        to_tm.ucast_egress_port = hdr.pass.port;
    }
    action too_late() {
        hdr.pass.step = STEP_LANES;
        hdr.pass.reply = REPLY_STALE;
        hdr.pass.passes_left = PASSES;
        hdr.pass.cell[3:0] = (bit<4>) EVENT_STALE;
        to_tm.ucast_egress_port = ig.ingress_port;
    }
    @brief("Last pass: a RESULT leaves, or is consumed again as STALE.")
    table finish_result {
        key = {
            difference     : ternary @name("difference");
            hdr.pass.reply : ternary @name("reply");
        }
        actions = { result_to_all; result_to_one; too_late; }
        const default_action = too_late;
        size = 2;
        const entries = {
            (0, REPLY_RESULT) : result_to_all();
            (0, _)            : result_to_one();
        }
    }

    // ---- contributors
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
    action do_write_##half() { hdr.hopsum.contributors[range] = write_##half.execute(COPY); } \
    action do_add_##half() { hdr.hopsum.contributors[range] = add_##half.execute(COPY); } \
    action do_read_##half() { hdr.hopsum.contributors[range] = read_##half.execute(COPY); } \
    action do_clear_##half() { hdr.hopsum.contributors[range] = 0; } \
    SLOT_STAGE(10) table contribute_##half { \
        key = { \
            meta.access : ternary @name("access"); \
            contributors_op : ternary @name("operation"); \
        } \
        actions = { do_write_##half; do_add_##half; do_read_##half; do_clear_##half; @defaultonly NoAction; } \
        const default_action = NoAction; \
        size = 8; \
        const entries = { \
            (ACCESS_UPDATE, OPERATION_WRITE) : do_write_##half(); \
            (ACCESS_UPDATE, OPERATION_ADD)   : do_add_##half(); \
            (ACCESS_UPDATE, OPERATION_READ)  : do_read_##half(); \
            (ACCESS_PROBE, OPERATION_READ)   : do_read_##half(); \
            (ACCESS_PROBE, _)                : do_clear_##half(); \
            (ACCESS_LAST, _)                 : do_read_##half(); \
        } \
    }
    CONTRIBUTORS(low, 31:0)
    CONTRIBUTORS(high, 63:32)

    @brief("Events by job, job_index * 16 + EVENT_*.")
    Counter<bit<32>, bit<16>>((bit<32>) MAX_JOBS * (bit<32>) JOB_EVENTS, CounterType_t.PACKETS) job_events;

    apply {
        mismatch = 0;
        contributors_op = 0;
        class_ = 0;
        need.apply();
        first_need.apply();
        access_tag.apply();
        access_op.apply();
        compare_rounds();
        if (meta.access == ACCESS_LAST) {
            finish_result.apply();
        } else {
            see_low.apply();
            see_high.apply();
            count.apply();
            subtract();
            decide.apply();
        }
        contribute_low.apply();
        contribute_high.apply();
        job_events.count(hdr.pass.cell);
    }
}
