// SPDX-License-Identifier: Apache-2.0
// The slot protocol of a root switch: which of a slot's two copies, what the copy holds, and what this packet means
// to it. Each register is read and written at most once per packet.
//
// tag = epoch ++ round is the only validity information: when it differs, everything else in the copy is dead (S2, S3).
// Nobody but this control writes these registers.

const bit<32> COPIES = 2 * (bit<32>) MAX_SLOTS;

const bit<8> COUNT_FINAL = 255;         // ctr: below, how many are in; this, the round is complete

const bit<2> CLASS_NEW  = 0;            // another epoch, or a newer round
const bit<2> CLASS_SAME = 1;            // the round that the copy holds
const bit<2> CLASS_OLD  = 2;            // an older round

control Slot(inout headers_t hdr, inout metadata_t meta) {
    register<bit<64>>(COPIES) tag;
    register<bit<8>>(COPIES) op;
    register<bitmap_t>(COPIES) seen;
    register<bit<8>>(COPIES) ctr;
    register<bitmap_t>(COPIES) contributors;
    counter((bit<32>) MAX_JOBS * (bit<32>) JOB_EVENTS, CounterType.packets) job_events;

    bit<2>   class_;
    bit<1>   is_seen;
    bit<1>   is_final;
    bit<1>   is_last;
    bitmap_t new_seen;
    bitmap_t new_contributors;
    bit<8>   new_ctr;
    bit<64>  held_tag;
    bit<8>   held_op;
    bit<8>   event;

    action open()       { meta.operation = OPERATION_WRITE; event = EVENT_ADDED; }
    action open_close() { meta.operation = OPERATION_WRITE; event = EVENT_ADDED; meta.reply = REPLY_RESULT; }
    action add()        { meta.operation = OPERATION_ADD;   event = EVENT_ADDED; }
    action add_close()  { meta.operation = OPERATION_ADD;   event = EVENT_ADDED; meta.reply = REPLY_RESULT; }
    action ignore()     { meta.operation = OPERATION_NONE;  event = EVENT_DUPLICATE; }
    action answer()     { meta.operation = OPERATION_READ;  event = EVENT_ANSWERED; meta.reply = REPLY_ANSWER; }
    action stale()      { meta.operation = OPERATION_NONE;  event = EVENT_STALE; meta.reply = REPLY_STALE; }

    table decide {
        key = {
            class_   : exact   @name("class");
            is_seen  : ternary @name("is_seen");
            is_final : ternary @name("is_final");
            is_last  : ternary @name("is_last");
        }
        actions = { open; open_close; add; add_close; ignore; answer; stale; }
        const default_action = ignore;
        const entries = {
            // class      seen  final  last
            (CLASS_NEW,   _,    _,     0) : open();        // all := this packet
            (CLASS_NEW,   _,    _,     1) : open_close();  // a job of one worker
            (CLASS_SAME,  0,    0,     0) : add();
            (CLASS_SAME,  0,    0,     1) : add_close();   // complete: RESULT to all
            (CLASS_SAME,  1,    0,     _) : ignore();      // duplicate while collecting
            (CLASS_SAME,  _,    1,     _) : answer();      // duplicate or late: RESULT to the sender (S6)
            (CLASS_OLD,   _,    _,     _) : stale();       // touches nothing (S7)
        }
    }

    action count(bit<8> which) {
        job_events.count((bit<32>) meta.job_index * (bit<32>) JOB_EVENTS + (bit<32>) which);
    }

    apply {
        meta.copy = (((bit<32>) meta.slot_base + (bit<32>) hdr.hopsum.slot) << 1) + (hdr.hopsum.round & 1);
        tag.read(held_tag, meta.copy);
        op.read(held_op, meta.copy);
        seen.read(new_seen, meta.copy);
        ctr.read(new_ctr, meta.copy);
        contributors.read(new_contributors, meta.copy);
        meta.held = held_tag[31:0];

        class_ = CLASS_OLD;
        if (held_tag[63:32] != hdr.hopsum.epoch || hdr.hopsum.round > held_tag[31:0]) {
            class_ = CLASS_NEW;
            if (held_tag[63:32] == hdr.hopsum.epoch && new_ctr != COUNT_FINAL) {
                count(EVENT_FAULT);
            }
            new_seen = 0;
            new_contributors = 0;
            new_ctr = 0;
        } else if (hdr.hopsum.round == held_tag[31:0]) {
            class_ = CLASS_SAME;
        }

        if (class_ == CLASS_SAME && held_op != hdr.hopsum.op) {
            meta.drop_reason = DROP_OP_MISMATCH;
        } else {
            is_seen = (bit<1>) ((new_seen & meta.worker_bit) != 0);
            is_final = (bit<1>) (new_ctr == COUNT_FINAL);
            is_last = (bit<1>) (new_ctr + 1 >= meta.quorum);
            decide.apply();
            count(event);

            if (class_ == CLASS_NEW) {
                tag.write(meta.copy, hdr.hopsum.epoch ++ hdr.hopsum.round);
                op.write(meta.copy, hdr.hopsum.op);
            }
            if (class_ != CLASS_OLD) {
                seen.write(meta.copy, new_seen | meta.worker_bit);
            }
            if (event == EVENT_ADDED) {                 // contributors change only with the values (S4)
                new_ctr = new_ctr + 1;
                new_contributors = new_contributors | meta.worker_bit;
                if (meta.reply == REPLY_RESULT) {
                    new_ctr = COUNT_FINAL;
                    count(EVENT_COMPLETED);
                }
                ctr.write(meta.copy, new_ctr);
                contributors.write(meta.copy, new_contributors);
            }
            meta.contributors = new_contributors;
        }
    }
}
