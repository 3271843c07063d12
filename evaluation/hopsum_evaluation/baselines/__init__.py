# SPDX-License-Identifier: Apache-2.0
"""Other people's methods, for comparisons only.

estimators      fp16, top-k, TernGrad, and those of `hopsum.codec.estimation`, by name
two_shot        quantised vectors of the two-shot all-reduce
thc_published   codec `thc-published`: THC as its authors published it
"""
