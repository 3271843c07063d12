# SPDX-License-Identifier: Apache-2.0
"""Subjects and instruments that need torch.

gloo_bench   the all-reduce of gloo, a subject of `hopsum bench allreduce`
published    the published worker in plain torch, a subject of `hopsum bench codec`
bench        throughput of codec thc on tensors
sass         the machine code that Triton's kernels become
"""
