# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan`: when does it pay? Step times of a job, method by method, and what binds each.

arguments   the job, in flags or as a torch module; units: rates, times and sizes
forecast    all methods of one job
report      a forecast as JSON and tables; plot: as a figure
calibrate   measure the costs on this machine
validate    predictions beside `hopsum bench allreduce`
paper       the synchronous-SGD model of Homomorphic Parameter Compression
"""
