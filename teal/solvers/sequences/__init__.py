"""Objectives that are sequences of programs: which programs, and what their solutions make
together.
"""
