// SPDX-License-Identifier: Apache-2.0
// The same service for LOOKUP_ADD8, lane by lane: what one would write first. Kept to be measured beside p4/v1model,
// whose files it uses for everything but lookup and sum.

#include <core.p4>
#include <v1model.p4>

#include "payload.p4"

// Admission tests the top bits of MAX32 lanes, an op that this program does not have.
#define v0 l000
#define v1 l001
#define v2 l002
#define v3 l003
#define HIGH32 ((bit<8>) 0x80)
#include "../../p4/v1model/parser.p4"
#include "../../p4/v1model/loss.p4"
#include "../../p4/v1model/address.p4"
#include "../../p4/v1model/admit.p4"
#include "lookup.p4"
#include "../../p4/v1model/slot.p4"
#include "aggregate.p4"
#include "../../p4/v1model/reply.p4"
#include "../../p4/v1model/forward.p4"
#include "../../p4/v1model/deparser.p4"

control NaiveIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter((bit<32>) DROP_REASONS, CounterType.packets) drops;
    Loss() ingress_loss;
    Address() address;
    Admit() admit;
    Lookup() lookup;
    Slot() slot;
    Aggregate() aggregate;
    ReplyHeader() reply;
    Forward() forward;

    bit<1> is_lost;

    apply {
        ingress_loss.apply(standard_metadata.ingress_port, is_lost);
        if (is_lost == 1) {
            meta.drop_reason = DROP_SIMULATED;
        } else {
            address.apply(hdr, meta, standard_metadata);
            if (meta.destination == DESTINATION_SERVICE) {
                admit.apply(hdr, meta, standard_metadata);
                if (meta.drop_reason == DROP_NONE && hdr.hopsum.kind == KIND_UPDATE) {
                    if (hdr.hopsum.op == OP_LOOKUP_ADD8) {
                        lookup.apply(hdr, meta);
                    } else {
                        meta.drop_reason = DROP_BAD_OP;
                    }
                }
                if (meta.drop_reason == DROP_NONE) {
                    slot.apply(hdr, meta);
                }
                if (meta.drop_reason == DROP_NONE) {
                    aggregate.apply(hdr, meta);
                    reply.apply(hdr, meta, standard_metadata);
                }
            } else if (meta.destination == DESTINATION_OTHER && meta.drop_reason == DROP_NONE) {
                forward.apply(hdr, meta, standard_metadata);
            }
        }
        if (meta.drop_reason != DROP_NONE) {
            drops.count((bit<32>) meta.drop_reason);
            mark_to_drop(standard_metadata);
        }
    }
}

control NaiveEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Rewrite() rewrite;
    PruneFlood() prune_flood;

    Loss() egress_loss;
    bit<1> is_pruned;
    bit<1> is_lost;

    apply {
        prune_flood.apply(meta, standard_metadata, is_pruned);
        if (is_pruned == 0) {
            egress_loss.apply(standard_metadata.egress_port, is_lost);
            if (is_lost == 1) {
                mark_to_drop(standard_metadata);
            } else if (meta.reply != REPLY_NONE) {
                rewrite.apply(hdr, meta, standard_metadata);
            }
        }
    }
}

V1Switch(HopsumParser(), HopsumVerifyChecksum(), NaiveIngress(), NaiveEgress(), HopsumComputeChecksum(),
         HopsumDeparser()) main;
