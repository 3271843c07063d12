// SPDX-License-Identifier: Apache-2.0

control HopsumIngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                              in ingress_intrinsic_metadata_for_deparser_t to_deparser) {
    apply { packet.emit(hdr); }
}

control HopsumEgressDeparser(packet_out packet, inout headers_t hdr, in egress_metadata_t meta,
                             in egress_intrinsic_metadata_for_deparser_t to_deparser) {
    Checksum() ipv4_checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = ipv4_checksum.update({
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification,
                hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src,
                hdr.ipv4.dst });
        }
        packet.emit(hdr);
    }
}
