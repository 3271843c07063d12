# SPDX-License-Identifier: Apache-2.0
"""`hopsum report`: what papers claim, beside what this machine measures, on one page.

command     arguments; collect: runs the sections into one JSON object
settings    seeds by name, and how large the experiments are; sections: which there are
claims      what is published, and the one function that says whether it was reproduced; interval: of few samples
shown       what a section shows: words, tables, plots, samples of claims
page, plots the page and its figures, from the JSON alone; markdown: the same as a page of the documentation

Sections, each `run(settings, tell) -> JSON` and `show(JSON) -> Shown`:

error       error of the mean against bits and workers
accuracy    seconds to a target on shaped links; accuracy_run: links, switch, workers; accuracy_worker: its processes;
            accuracy_plan: models' targets, and what passes between processes; accuracy_models: networks and data;
            accuracy_figures: curves, tables; topk, software: what thc by the switch is compared with; accuracy_bench:
            the trainings alone, `hopsum bench accuracy`, with accuracy_choice (hopsum's setting, by the plan) and
            accuracy_ratios
dataplane   codes per second: native code, bmv2, a program that works lane by lane
estimation  mean estimation against its bounds; applications: k-means and PCA over workers
lossless    throughput against density; iteration: a step around it; peeling: which sketches peel
loss        lost packets and stragglers; lossy: what becomes of a sum; learner: what is trained
"""
