// SPDX-License-Identifier: Apache-2.0
// The slot protocol: which of a slot's two copies, what the copy holds, and what this packet means to it. A switch with
// a parent (a leaf) closes a round where a root completes it; RESULT and STALE come from the parent alone.
//
// tag = generation ++ round is the only validity information: when it differs, everything else in the copy is dead (S2,
// S3). Nobody but this control writes these registers. Each register is read and written at most once for a packet, in
// this order: read all, classify, decide, adjust the decision where this switch is a leaf, write, count.

const bit<32> COPIES = 2 * (bit<32>) MAX_SLOTS;

// ctr: how many are in, or
const bit<8> COUNT_CLOSED = 254;        // the partial sum is with the parent
const bit<8> COUNT_FINAL  = 255;        // the round is complete

const bitmap_t ALL_CHILDREN = 0xffffffffffffffff;

const bit<2> CLASS_NEW  = 0;            // another generation, or a newer round
const bit<2> CLASS_SAME = 1;            // the round that the copy holds
const bit<2> CLASS_OLD  = 2;            // an older round

control Slot(inout headers_t hdr, inout metadata_t meta) {
    @brief("Generation and round that a copy holds.")
    register<bit<64>>(COPIES) tag;
    @brief("Operation of the held round.")
    register<bit<8>>(COPIES) op;
    @brief("Children that arrived for the held round.")
    register<bitmap_t>(COPIES) seen;
    @brief("How many are in; 254 closed, 255 complete.")
    register<bit<8>>(COPIES) ctr;
    @brief("Workers in the values.")
    register<bitmap_t>(COPIES) contributors;
    @brief("Events by job, job_index * 16 + EVENT_*.")
    counter((bit<32>) MAX_JOBS * (bit<32>) JOB_EVENTS, CounterType.packets) job_events;

    bit<2>   class_;
    bit<1>   is_seen;
    bit<1>   is_final;
    bit<1>   is_last;
    bit<1>   is_enough;
    bit<8>   need;
    bitmap_t new_seen;
    bitmap_t new_contributors;
    bit<8>   new_ctr;
    bit<64>  held_tag;
    bit<8>   held_op;
    bit<8>   event;
    bit<32>  cell;

    action open()       { meta.operation = OPERATION_WRITE; event = EVENT_ADDED; }
    action open_close() { meta.operation = OPERATION_WRITE; event = EVENT_ADDED;     meta.reply = REPLY_RESULT; }
    action add()        { meta.operation = OPERATION_ADD;   event = EVENT_ADDED; }
    action add_close()  { meta.operation = OPERATION_ADD;   event = EVENT_ADDED;     meta.reply = REPLY_RESULT; }
    action close()      { meta.operation = OPERATION_READ;  event = EVENT_COMPLETED; meta.reply = REPLY_RESULT; }
    action ignore()     { meta.operation = OPERATION_NONE;  event = EVENT_DUPLICATE; }
    action answer()     { meta.operation = OPERATION_READ;  event = EVENT_ANSWERED;  meta.reply = REPLY_ANSWER; }
    action stale()      { meta.operation = OPERATION_NONE;  event = EVENT_STALE;     meta.reply = REPLY_STALE; }

    // The protocol's decision table. need = quorum, with FLUSH min(quorum, min_quorum).
    //   seen    this child arrived for this round before
    //   final   the round is complete, or closed
    //   last    with this packet `need` are in
    //   enough  FLUSH, and min_quorum are in without this packet
    @brief("What a packet means to its slot: constant entries.")
    table decide {
        key = {
            class_    : exact   @name("class");
            is_seen   : ternary @name("is_seen");
            is_final  : ternary @name("is_final");
            is_last   : ternary @name("is_last");
            is_enough : ternary @name("is_enough");
        }
        actions = { open; open_close; add; add_close; close; ignore; answer; stale; }
        const default_action = ignore;
        const entries = {
            // class      seen  final last  enough
            (CLASS_NEW,   _,    _,    0,    _) : open();        // all := this packet (S3)
            (CLASS_NEW,   _,    _,    1,    _) : open_close();  // ... which is enough already
            (CLASS_SAME,  0,    0,    0,    _) : add();         // once per child (S4)
            (CLASS_SAME,  0,    0,    1,    _) : add_close();   // complete: RESULT to all (S5)
            (CLASS_SAME,  1,    0,    _,    0) : ignore();      // duplicate while collecting
            (CLASS_SAME,  1,    0,    _,    1) : close();       // ... past its deadline: RESULT to all (S8)
            (CLASS_SAME,  _,    1,    _,    _) : answer();      // duplicate or late: RESULT to the sender (S6)
            (CLASS_OLD,   _,    _,    _,    _) : stale();       // touches nothing (S7)
        }
    }

    // What a leaf does where a root would send a RESULT (T3).
    action partial() { meta.reply = REPLY_PARTIAL; }
    action resend()  { meta.reply = REPLY_PARTIAL; event = EVENT_RESENT; }

    // RESULT of the parent, of a round that is not complete here (T1, T2).
    action store_parent_result() {
        meta.operation = OPERATION_WRITE;
        meta.reply = REPLY_RESULT;
        meta.contributors = meta.packet_contributors;
        contributors.write(meta.slot_index, meta.packet_contributors);
        ctr.write(meta.slot_index, COUNT_FINAL);
        event = EVENT_TAKEN;
    }
    // STALE of the parent (T6).
    action relay() {
        meta.reply = REPLY_RELAY;
        meta.held = hdr.hopsum.held;
        meta.contributors = meta.packet_contributors;
        event = EVENT_RELAYED;
    }

    action count() {
        cell = (bit<32>) meta.job_index * (bit<32>) JOB_EVENTS + (bit<32>) event;
        job_events.count(cell);
    }

    action read() {
        meta.slot_index = (((bit<32>) meta.slot_base + (bit<32>) hdr.hopsum.slot) << 1) + (hdr.hopsum.round & 1);
        tag.read(held_tag, meta.slot_index);
        op.read(held_op, meta.slot_index);
        seen.read(new_seen, meta.slot_index);
        ctr.read(new_ctr, meta.slot_index);
        contributors.read(new_contributors, meta.slot_index);
        meta.held = held_tag[31:0];
    }

    // What the copy holds, if it is of this generation.
    action report() {
        meta.reply = REPLY_STATE;
        meta.state = STATE_COLLECTING;
        meta.held_op = held_op;
        meta.contributors = new_contributors;
    }
    action report_empty() {
        meta.reply = REPLY_STATE;
        meta.state = STATE_EMPTY;
        meta.held = 0;
    }

    apply { // all reads, then one of four kinds of packet, then all writes: at most one of each register
        read();
        if (hdr.hopsum.kind == KIND_STALE) { // 1. the parent's STALE: no register changes
            relay();
            count();
        } else if (hdr.hopsum.kind == KIND_PROBE) { // 2. a question: no register changes
            if (held_tag[63:32] != hdr.hopsum.generation) {
                report_empty();
            } else {
                report();
                if (new_ctr == COUNT_FINAL) {
                    meta.state = STATE_FINAL;
                } else if (new_ctr == COUNT_CLOSED) {
                    meta.state = STATE_CLOSED;
                }
            }
            event = EVENT_PROBED;
            count();
        } else { // 3. the parent's RESULT, or 4. an UPDATE or PARTIAL of a child
            // Classify: is the round new, the one that the copy holds, or an older one?
            class_ = CLASS_OLD;
            if (held_tag[63:32] != hdr.hopsum.generation || hdr.hopsum.round > held_tag[31:0]) {
                class_ = CLASS_NEW;
                if (held_tag[63:32] == hdr.hopsum.generation && new_ctr != COUNT_FINAL) {
                    event = EVENT_FAULT;
                    count();
                }
                new_seen = 0;
                new_contributors = 0;
                new_ctr = 0;
            } else if (hdr.hopsum.round == held_tag[31:0]) {
                class_ = CLASS_SAME;
            }

            if (class_ == CLASS_SAME && held_op != hdr.hopsum.op) {
                meta.drop_reason = DROP_OP_MISMATCH;
            } else if (hdr.hopsum.kind == KIND_RESULT) {
                // The parent's result: stored once (T1), else known.
                event = EVENT_KNOWN;
                if (class_ != CLASS_OLD && new_ctr != COUNT_FINAL) {
                    store_parent_result();
                    if (class_ == CLASS_NEW) {
                        tag.write(meta.slot_index, hdr.hopsum.generation ++ hdr.hopsum.round);
                        op.write(meta.slot_index, hdr.hopsum.op);
                        seen.write(meta.slot_index, ALL_CHILDREN);
                    }
                }
                count();
            } else {
                // Decide.
                need = meta.quorum;
                is_enough = 0;
                if ((hdr.hopsum.flags & FLAG_FLUSH) != 0) {
                    is_enough = (bit<1>) (new_ctr >= meta.min_quorum);
                    if (meta.min_quorum < need) {
                        need = meta.min_quorum;
                    }
                }
                is_seen = (bit<1>) ((new_seen & meta.worker_bit) != 0);
                is_final = (bit<1>) (new_ctr >= COUNT_CLOSED);
                is_last = (bit<1>) (new_ctr + 1 >= need);
                decide.apply();
                // A leaf sends PARTIAL to its parent where a root would send RESULT to all (T3).
                if (meta.has_parent == 1 && new_ctr != COUNT_FINAL) {
                    if (meta.reply == REPLY_ANSWER) {
                        resend();
                    } else if (meta.reply == REPLY_RESULT) {
                        partial();
                        if (event == EVENT_COMPLETED) {
                            event = EVENT_CLOSED;
                        }
                    }
                }
                count();

                // Write what the decision changes, and count what it completed.
                if (class_ == CLASS_NEW) {
                    tag.write(meta.slot_index, hdr.hopsum.generation ++ hdr.hopsum.round);
                    op.write(meta.slot_index, hdr.hopsum.op);
                }
                if (class_ != CLASS_OLD) {
                    seen.write(meta.slot_index, new_seen | meta.worker_bit);
                }
                if (event == EVENT_ADDED) {             // contributors change only with the values (S4)
                    new_ctr = new_ctr + 1;
                    new_contributors = new_contributors | meta.packet_contributors;
                    contributors.write(meta.slot_index, new_contributors);
                    if (meta.reply == REPLY_RESULT) {
                        event = EVENT_COMPLETED;
                        count();
                    } else if (meta.reply == REPLY_PARTIAL) {
                        event = EVENT_CLOSED;
                        count();
                    }
                }
                if (meta.reply == REPLY_RESULT) {
                    new_ctr = COUNT_FINAL;
                } else if (meta.reply == REPLY_PARTIAL) {
                    new_ctr = COUNT_CLOSED;
                }
                if (event == EVENT_ADDED || event == EVENT_COMPLETED || event == EVENT_CLOSED) {
                    ctr.write(meta.slot_index, new_ctr);
                }
                meta.contributors = new_contributors;
            }
        }
    }
}
