# SPDX-License-Identifier: Apache-2.0
"""Trainings and their steps over shaped links: `hopsum bench accuracy` and `hopsum bench training`. They need torch.

accuracy          trainings over shaped links; accuracy_plan: models and messages; accuracy_worker: its processes
accuracy_models   networks and data; published_networks: those of papers; other_schemes: a hook over gloo
time_to_target    arithmetic of trainings
accuracy_bench    trainings to a target: `hopsum bench accuracy`
training_bench    the time of steps, by the same workers: `hopsum bench training`
"""
