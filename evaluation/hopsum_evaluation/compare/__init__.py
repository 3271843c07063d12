# SPDX-License-Identifier: Apache-2.0
"""`hopsum codec WHAT`: what codecs make of vectors, without a network.

compare    error against bits of every method, as a table and as plots
  vectors    what is compared on: gradients of the demo's model, and random vectors
  methods    codecs of the switch and estimators behind one interface; candidates: those compared
  measure    the error of one method, many times; what theory expects of it
  report     cells as JSON and as tables; plot: as figures
capture    record the gradients that come with the package, again
"""
