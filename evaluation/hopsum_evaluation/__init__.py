# SPDX-License-Identifier: Apache-2.0
"""The evaluation: measurements, comparisons and demonstrations of the system.

bench        measurements: `hopsum bench`
compare      codecs on vectors: `hopsum codec`; baselines: methods that no switch sums
report       what papers claim, reproduced on one page: `hopsum report`
training     trainings and their steps over shaped links
plan         times of steps, predicted: `hopsum plan`
demo         a training through a switch: `hopsum demo`; selftest: sums through a switch
torch        the parts of these that need torch

experiment has what sections of a report and trainings share: sizes, seeds, progress, a process for a measurement.
interval is the interval of a mean.
"""
