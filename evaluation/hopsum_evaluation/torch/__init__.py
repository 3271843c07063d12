# SPDX-License-Identifier: Apache-2.0
"""Subjects and instruments that need torch.

gloo_bench   the all-reduce of gloo, a subject of `hopsum bench allreduce`
bench        throughput of codec thc on tensors
"""
