// SPDX-License-Identifier: Apache-2.0
// In-network aggregation on Tofino (TNA). This file instantiates the controls; pass.p4 says how a packet goes from pass
// to pass. Consuming passes that harvest values on the way out are SwitchML's (Sapio et al., NSDI 2021); codes that the
// switch looks up and adds are THC's (Li et al., NSDI 2024). Rules in brackets (S1, ...) stand in docs/protocol.md.
// p4c-barefoot takes the program preprocessed (tools/compile_tna.py), with __TARGET_TOFINO__ and CODES_HALF of the chip.

#include "payload.p4"
#include "placement.p4"
#include "parser.p4"
#include "address.p4"
#include "admit.p4"
#include "lookup.p4"
#include "slot.p4"
#include "aggregate.p4"
#include "pass.p4"
#include "reply.p4"
#include "forward.p4"
#include "deparser.p4"

control HopsumIngress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig,
                      in ingress_intrinsic_metadata_from_parser_t from_parser,
                      inout ingress_intrinsic_metadata_for_deparser_t to_deparser,
                      inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    @brief("Dropped frames, by DROP_*.")
    Counter<bit<32>, bit<8>>((bit<32>) DROP_REASONS, CounterType_t.PACKETS) drops;
    Address() address;
    Lookup() lookup;
    Admit() admit;
    Slot() slot;
    IngressLookupWords() lookup_words;
    IngressAggregate() aggregate;
    IngressPass() ingress_pass;
    Loop() loop;
    Forward() forward;

    apply {
        if (hdr.lanes.isValid()) {
            IF_ALL(hdr.pass.table_id != TABLE_LANES, lookup_words.apply(hdr.pass, hdr.lanes);)
            aggregate.apply(hdr.pass, hdr.lanes);
            ingress_pass.apply(hdr, ig, to_deparser, to_tm);
        } else {
            if (meta.access != ACCESS_LAST) {
                if (meta.from_loop == 0) {
                    hdr.pass.port = ig.ingress_port;
                }
                if (hdr.hopsum.isValid()) {
                    address.apply(hdr, meta);
                    lookup.apply(hdr, meta);
                    admit.apply(hdr, meta);
                }
                if (!meta.is_local) {
                    forward.apply(hdr, meta, to_tm);
                }
            }
            if (meta.access != ACCESS_NONE) {
                slot.apply(hdr, meta, ig, to_deparser, to_tm);
            } else if (hdr.pass.step == STEP_ADMIT) {
                loop.apply(hdr, to_tm);
            }
            if (meta.drop_reason != DROP_NONE) {
                drops.count(meta.drop_reason);
                to_deparser.drop_ctl = 1;
            }
        }
    }
}

control HopsumEgress(inout headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t eg,
                     in egress_intrinsic_metadata_from_parser_t from_parser,
                     inout egress_intrinsic_metadata_for_deparser_t to_deparser,
                     inout egress_intrinsic_metadata_for_output_port_t to_port) {
    EgressLookupWords() lookup_words;
    EgressAggregate() aggregate;
    EgressPass() egress_pass;
    ReplyHeader() reply;
    Rewrite() rewrite;
    PruneFlood() prune_flood;

    apply {
        if (hdr.lanes.isValid()) {
            IF_ALL(hdr.pass.table_id != TABLE_LANES, lookup_words.apply(hdr.pass, hdr.lanes);)
            aggregate.apply(hdr.pass, hdr.lanes);
            egress_pass.apply(hdr);
        } else {
            if (hdr.pass.step == STEP_REPLY) {
                reply.apply(hdr, eg);
                rewrite.apply(hdr, to_deparser);
            } else {
                prune_flood.apply(hdr, eg, to_deparser);
            }
            hdr.pass.setInvalid();
        }
    }
}

Pipeline(HopsumIngressParser(), HopsumIngress(), HopsumIngressDeparser(),
         HopsumEgressParser(), HopsumEgress(), HopsumEgressDeparser()) pipe;
Switch(pipe) main;
