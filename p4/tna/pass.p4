// SPDX-License-Identifier: Apache-2.0
// From pass to pass. C = PASSES; half a pass is ingress (I) or egress (E); block b is CODES_HALF codes or bytes of
// lanes; row k of E holds block 2 k, row k of I holds block 2 k + 1.
//
//   front port          admits, and sends the whole frame round once, by the queue of undecided packets
//   I 0                 admits again and decides; from here on the packet takes the queue of decided packets
//   E k, k = 0 .. C-1   consumes block 2 k       (row k)
//   I k, k = 1 .. C     consumes block 2 k - 1   (row k - 1); here a packet without a reply ends, and a STALE leaves
//   E C + j             harvests block 2 (C - j) - 2, I C + j block 2 (C - j) - 1: with those that I C has just
//                       combined, lanes come out from the last to the first, each in front of those before
//   I 2 C               looks at the tag again (Slot): RESULT leaves; if the copy has moved on, lanes are consumed
//                       again and a STALE leaves
//
// Packets that are decided at a front port would enter the loop's queue in another order than they were decided: ingress
// runs when the header is there, and the queue takes a packet when its last byte is stored. A loop port is serial, so
// behind it both orders are one. All packets of a slot go through one loop port. Every packet makes the same C consuming
// passes, also one that changes nothing: pass k of a packet that was decided earlier comes before pass k of one that was
// decided later. The traffic manager must serve the queue of decided packets first (strict priority): then a full loop
// drops packets that are not decided yet, as a network may. A decided packet that is dropped is a wrong sum.

const queue_t QUEUE_DECIDED   = 0;
const queue_t QUEUE_UNDECIDED = 1;

control Loop(in headers_t hdr, inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    @brief("Send round through a loop port.")
    action loop_through(port_t port) {
        to_tm.ucast_egress_port = port;
        to_tm.qid = QUEUE_UNDECIDED;
        to_tm.bypass_egress = 1;
    }

    // Ternary, since lookups need the exact matches.
    @brief("Loop port of a slot, by the low bits of the slot's number in its job.")
    table loop {
        key = { hdr.hopsum.slot[5:0] : ternary @name("slot_bits"); }
        actions = { loop_through; }
        default_action = loop_through(LOOP);
        size = 64;
    }

    apply { loop.apply(); }
}

control IngressPass(inout headers_t hdr, in ingress_intrinsic_metadata_t ig,
                    inout ingress_intrinsic_metadata_for_deparser_t to_deparser,
                    inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    action consume() {
        hdr.lanes.setInvalid();
        hdr.pass.row = hdr.pass.row + COPIES;
        hdr.pass.passes_left = hdr.pass.passes_left - 1;
        to_tm.ucast_egress_port = ig.ingress_port;
    }
    action finish() { to_deparser.drop_ctl = 1; }
    action stale() {
        hdr.lanes.setInvalid();
        hdr.pass.step = STEP_REPLY;
        to_tm.ucast_egress_port = hdr.pass.port;
    }
    action start_harvest() {
        hdr.pass.step = STEP_HARVEST;
        hdr.pass.operation = OPERATION_READ;
        hdr.pass.table_id = TABLE_NOTHING;
        hdr.pass.passes_left = PASSES;
        to_tm.ucast_egress_port = ig.ingress_port;
    }
    action harvest() { to_tm.ucast_egress_port = ig.ingress_port; }

    @brief("How a packet goes on from ingress.")
    table next_pass {
        key = {
            hdr.pass.step        : ternary @name("step");
            hdr.pass.passes_left : ternary @name("passes_left");
            hdr.pass.reply       : ternary @name("reply");
        }
        actions = { consume; finish; stale; start_harvest; harvest; }
        const default_action = consume;
        size = 4;
        const entries = {
            (STEP_HARVEST, _, _)  : harvest();
            (_, 1, REPLY_NONE)    : finish();
            (_, 1, REPLY_STALE)   : stale();
            (_, 1, _)             : start_harvest();
        }
    }

    apply { next_pass.apply(); }
}

control EgressPass(inout headers_t hdr) {
    action consume() {
        hdr.lanes.setInvalid();
    }
    action harvest() {
        hdr.pass.row = hdr.pass.row - COPIES;
        hdr.pass.passes_left = hdr.pass.passes_left - 1;
    }
    action harvest_first_block() { hdr.pass.step = STEP_LAST; }     // row is the copy again

    @brief("How a packet goes on from egress.")
    table next_half {
        key = {
            hdr.pass.step        : ternary @name("step");
            hdr.pass.passes_left : ternary @name("passes_left");
        }
        actions = { consume; harvest; harvest_first_block; }
        const default_action = consume;
        size = 2;
        const entries = {
            (STEP_HARVEST, 1) : harvest_first_block();
            (STEP_HARVEST, _) : harvest();
        }
    }

    apply { next_half.apply(); }
}
