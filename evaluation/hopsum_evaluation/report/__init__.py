# SPDX-License-Identifier: Apache-2.0
"""`hopsum report`: what papers claim, compared with what this machine measures, on two pages.

reporting         command: runs the sections into one JSON object, judges their claims
claims            verdicts; pages: Markdown, pictures, CSV

Sections: error, links, packet_loss, lossless_claims, estimation.

links             all-reduces and trainings over shaped links, by the benchmarks; answers: tables, words, claims of them
lossy_training    trainings in memory with lost packets
"""
