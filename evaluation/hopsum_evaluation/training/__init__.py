# SPDX-License-Identifier: Apache-2.0
"""Trainings and their steps over shaped links: `hopsum bench accuracy` and `hopsum bench training`. They need torch."""
