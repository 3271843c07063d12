// SPDX-License-Identifier: Apache-2.0
// In-network aggregation on v1model. This file instantiates the controls; ../README.md has the packet walkthrough.
//
// Rules in brackets (S1, T3, ...) stand in docs/protocol.md. Two copies of a slot with a bitmap of who was seen, and a
// RESULT to all by multicast, are SwitchML's (Sapio et al., "Scaling Distributed Machine Learning with In-Network
// Aggregation", NSDI 2021). Codes that the switch looks up and adds, and sums without some workers, are THC's (Li et al.,
// "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression", NSDI 2024).

#include <core.p4>
#include <v1model.p4>

#include "payload.p4"
#include "parser.p4"
#include "loss.p4"
#include "address.p4"
#include "admit.p4"
#include "lookup.p4"
#include "slot.p4"
#include "aggregate.p4"
#include "requantize.p4"
#include "reply.p4"
#include "tree.p4"
#include "forward.p4"
#include "deparser.p4"

control HopsumIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    @brief("Dropped frames, by DROP_*.")
    counter((bit<32>) DROP_REASONS, CounterType.packets) drops;
    Loss() ingress_loss;
    Address() address;
    TreePeers() tree_peers;
    Admit() admit;
    Lookup() lookup;
    Slot() slot;
    Aggregate() aggregate;
    Requantize() requantize;
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
                tree_peers.apply(hdr, meta);
                admit.apply(hdr, meta, standard_metadata);
                if (meta.drop_reason == DROP_NONE) {
                    lookup.apply(hdr, meta);
                }
                if (meta.drop_reason == DROP_NONE) {
                    slot.apply(hdr, meta);
                }
                if (meta.drop_reason == DROP_NONE) {
                    aggregate.apply(hdr, meta);
                    requantize.apply(hdr, meta);
                }
                if (meta.drop_reason == DROP_NONE) {
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

control HopsumEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Rewrite() rewrite;
    ParentRewrite() parent_rewrite;
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
            } else if (meta.reply == REPLY_PARTIAL) {
                parent_rewrite.apply(hdr, standard_metadata);
            } else if (meta.reply != REPLY_NONE) {
                rewrite.apply(hdr, meta, standard_metadata);
            }
        }
    }
}

V1Switch(HopsumParser(), HopsumVerifyChecksum(), HopsumIngress(), HopsumEgress(), HopsumComputeChecksum(),
         HopsumDeparser()) main;
