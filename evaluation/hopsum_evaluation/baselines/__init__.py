# SPDX-License-Identifier: Apache-2.0
"""Other people's methods, for comparisons only.

estimator_interface  mean estimation with few bits, decoded at the receiver: messages, random numbers, levels, codes
suresh               sb, sk, srk, svk (Suresh, Yu, Kumar, McMahan, ICML 2017), and their bounds
estimators           fp16, top-k, TernGrad, and all estimators by name
thc_published        codec `thc-published`: THC as its authors published it

The package constriction is imported when `svk` is made, not before.
"""
