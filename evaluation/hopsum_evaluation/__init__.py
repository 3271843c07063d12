# SPDX-License-Identifier: Apache-2.0
"""The evaluation: measurements, comparisons and demonstrations of the system.

bench        measurements: `hopsum bench`
compare      codecs on vectors: `hopsum codec`; baselines: methods that no switch sums
report       what papers claim, reproduced on one page: `hopsum report`
plan         step times: the library's model beside measurements
demo, sums   a training and sums through a switch: `hopsum demo`, `hopsum selftest`
torch        what of these needs torch
"""
