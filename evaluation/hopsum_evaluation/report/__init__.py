# SPDX-License-Identifier: Apache-2.0
"""`hopsum report`: what papers claim, beside what this machine measures, on two pages.

reporting         command: runs the sections into one JSON object, judges their claims
experiment        what sections have in common; claims: verdicts and intervals; pages: Markdown, pictures, CSV

Sections: error, links, packet_loss, lossless_claims, estimation.

links             all-reduces and trainings over shaped links, by the benchmarks; answers: tables, words, claims of them
accuracy          trainings over shaped links; accuracy_plan: models and messages; accuracy_worker: its processes
accuracy_models   networks and data; published_networks: those of papers; other_schemes: a hook over gloo
time_to_target    arithmetic of trainings
accuracy_bench    trainings to a target: `hopsum bench accuracy`
training_bench    the time of steps, by the same workers: `hopsum bench training`
lossy_training    trainings in memory with lost packets
"""
