# SPDX-License-Identifier: Apache-2.0
"""`hopsum codec compare`: the error that codecs and other methods make of the mean of vectors, without a network.

compare    command, tables and plots
measure    error of one method, many times, compared with theory
methods    codecs and estimators behind one interface, and those that are compared
vectors    vectors to compare on: gradients of the demo's model, and random vectors
"""
